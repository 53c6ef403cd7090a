#include "kernels/collective/tcp_store.h"

#include <sys/socket.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/collective/socket.h"
#include "kernels/collective/store_protocol.h"
#include "kernels/collective/store_server.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr absl::Duration kNone = absl::ZeroDuration();
constexpr absl::Duration kShort = absl::Milliseconds(1);

// What a server has said; its thread says it before it closes the connection.
struct Log {
  std::function<void(const std::string&)> Hook() {
    return [this](const std::string& line) {
      const std::lock_guard<std::mutex> lock(mutex);
      lines.push_back(line);
    };
  }
  std::vector<std::string> Take() {
    const std::lock_guard<std::mutex> lock(mutex);
    return std::move(lines);
  }

  std::mutex mutex;
  std::vector<std::string> lines;
};

std::unique_ptr<StoreServer> StartServer(
    const std::string& token, absl::Duration greeting_timeout = kLong,
    Log* log = nullptr) {
  auto server =
      StoreServer::Start({.host = "127.0.0.1",
                          .token = token,
                          .greeting_timeout = greeting_timeout,
                          .log = log == nullptr ? nullptr : log->Hook()});
  SG_CHECK_OK(server);
  return *std::move(server);
}

absl::StatusOr<std::unique_ptr<TcpStore>> Client(const StoreServer& server,
                                                 const std::string& token) {
  return TcpStore::Connect({.host = "127.0.0.1",
                            .port = server.port(),
                            .token = token,
                            .self = "rank 1 on node7",
                            .timeout = kLong});
}

// A connection that speaks the protocol by hand.
class RawClient {
 public:
  explicit RawClient(const StoreServer& server) {
    auto fd = Connect("127.0.0.1", server.port(), absl::Now() + kLong);
    SG_CHECK_OK(fd);
    fd_ = *std::move(fd);
  }
  void Send(const std::string& bytes) {
    SG_CHECK_OK(SendAll(fd_.get(), bytes, absl::Now() + kLong));
  }
  std::string Receive(size_t bytes) {
    std::string data(bytes, 0);
    SG_CHECK_OK(ReceiveAll(fd_.get(), data.data(), bytes, absl::Now() + kLong));
    return data;
  }
  // The server closes the connection without a word.
  bool IsClosed() {
    char byte;
    return ReceiveAll(fd_.get(), &byte, 1, absl::Now() + kLong).code() ==
           absl::StatusCode::kUnavailable;
  }

 private:
  UniqueFd fd_;
};

TEST(TcpStoreTest, SetGetAddCheckDelete) {
  const auto server = StartServer("secret");
  const auto store = *Client(*server, "secret");
  ASSERT_TRUE(store->Set("a", std::string("x\0y", 3)).ok());
  EXPECT_EQ(*store->Get("a", kNone), std::string("x\0y", 3));
  EXPECT_EQ(*store->Add("n", 5), 5);
  EXPECT_EQ(*store->Add("n", -7), -2);
  EXPECT_EQ(*store->Get("n", kNone), "-2");
  EXPECT_TRUE(*store->Check({"a", "n"}));
  EXPECT_FALSE(*store->Check({"a", "b"}));
  EXPECT_TRUE(store->Wait({"a", "n"}, kNone).ok());
  EXPECT_TRUE(*store->Delete("a"));
  EXPECT_FALSE(*store->Delete("a"));
  ASSERT_TRUE(store->Set("empty", "").ok());
  EXPECT_EQ(*store->Get("empty", kNone), "");
  const std::string large(3000001, 'z');
  ASSERT_TRUE(store->Set("large", large).ok());
  EXPECT_EQ(*store->Get("large", kLong), large);
  EXPECT_EQ(*store->LocalAddress(), "127.0.0.1");
}

TEST(TcpStoreTest, ClientsSeeAndAwaitEachOther) {
  const auto server = StartServer("secret");
  const auto one = *Client(*server, "secret");
  std::thread other([&] {
    const auto two = *Client(*server, "secret");
    EXPECT_EQ(*two->Get("ping", kLong), "1");
    EXPECT_TRUE(two->Set("pong", "2").ok());
  });
  // Two threads of one client wait at once, one for what the other brings.
  std::thread waiter([&] {
    EXPECT_TRUE(one->Wait({"pong", "ping", "last"}, kLong).ok());
  });
  ASSERT_TRUE(one->Set("ping", "1").ok());
  EXPECT_EQ(*one->Get("pong", kLong), "2");
  ASSERT_TRUE(one->Set("last", "").ok());
  waiter.join();
  other.join();
}

TEST(TcpStoreTest, DeadlineNamesServerSelfAndKey) {
  const auto server = StartServer("secret");
  const auto store = *Client(*server, "secret");
  for (int i = 0; i < 2; ++i) {  // and the store works on
    const absl::Status status = store->Get("mesh/rank_3", kShort).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("'mesh/rank_3'"), HasSubstr("rank 1 on node7"),
                      HasSubstr("127.0.0.1:" + std::to_string(server->port())),
                      HasSubstr("1ms")));
  }
  ASSERT_TRUE(store->Set("a", "b").ok());
  EXPECT_EQ(*store->Get("a", kNone), "b");
}

TEST(TcpStoreTest, WrongTokenIsRefusedAndDisturbsNobody) {
  Log log;
  const auto server = StartServer("secret", kLong, &log);
  const auto store = *Client(*server, "secret");
  ASSERT_TRUE(store->Set("a", "b").ok());
  for (const std::string token : {"wrong", "secre", "secret2"}) {
    const absl::Status status = Client(*server, token).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << token;
    EXPECT_THAT(std::string(status.message()), HasSubstr("token"));
  }
  EXPECT_THAT(
      log.Take(),
      ElementsAre(AllOf(HasSubstr("refused 127.0.0.1:"),
                        HasSubstr("its job token is another (1 refused")),
                  HasSubstr("(2 refused so far)"), HasSubstr("(3 refused")));
  // Without a greeting, with a wrong magic, without a token, with garbage.
  std::string hello(1, static_cast<char>(StoreRequest::kValidate));
  AppendNumber<uint32_t>(&hello, kValidateMagic);
  std::string set(1, static_cast<char>(StoreRequest::kSet));
  AppendText(&set, "a");
  AppendText(&set, "changed");
  std::string bad = hello;
  bad[1] ^= 1;
  for (const std::string& bytes :
       {set, bad, hello + set, std::string("GET / HTTP/1.1\r\n\r\n"),
        hello + std::string(1, 64) + std::string(8000, '\xff')}) {
    RawClient client(*server);
    client.Send(bytes);
    EXPECT_TRUE(client.IsClosed());
    EXPECT_THAT(log.Take(),
                ElementsAre(HasSubstr("its greeting is not that of a rank")));
  }
  EXPECT_EQ(*store->Get("a", kNone), "b");
}

TEST(TcpStoreTest, SilentStrangersAreDropped) {
  Log log;
  const auto server = StartServer("secret", kShort, &log);
  RawClient silent(*server);
  EXPECT_TRUE(silent.IsClosed());
  EXPECT_THAT(log.Take(), ElementsAre(HasSubstr("no greeting in time")));
}

TEST(TcpStoreTest, ManyStrangersLeaveRoom) {
  Log log;
  const auto server = StartServer("secret", kLong, &log);
  std::vector<std::unique_ptr<RawClient>> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(std::make_unique<RawClient>(*server));
  }
  const auto store = *Client(*server, "secret");
  EXPECT_TRUE(store->Set("a", "b").ok());
  EXPECT_TRUE(strangers[0]->IsClosed());
  // Not a line for each.
  const std::vector<std::string> lines = log.Take();
  EXPECT_LE(lines.size(), 13u);
  EXPECT_THAT(lines,
              Each(HasSubstr("too many connections without a greeting")));
}

// The bytes that torch's TCPStore client and server exchange.
TEST(TcpStoreTest, SpeaksTorchsProtocol) {
  const auto server = StartServer("");
  RawClient client(*server);
  const auto number = [](uint64_t n) {
    return std::string(reinterpret_cast<const char*>(&n), 8);
  };
  const auto text = [&](const std::string& s) { return number(s.size()) + s; };
  client.Send(std::string("\x00\xce\xf7\x85\x3c", 5));
  client.Send("\x01" + text("key") + text("value"));
  client.Send("\x06" + number(1) + text("key"));
  EXPECT_EQ(client.Receive(1), std::string(1, 0));
  client.Send("\x03" + text("key"));
  EXPECT_EQ(client.Receive(8 + 5), text("value"));
  client.Send("\x04" + text("n") + number(41));
  EXPECT_EQ(client.Receive(8), number(41));
  // Byte by byte: requests may arrive in pieces.
  for (const char c : "\x05" + number(2) + text("key") + text("none")) {
    client.Send(std::string(1, c));
  }
  EXPECT_EQ(client.Receive(1), "\x01");
  client.Send("\x05" + number(1) + text("n"));
  EXPECT_EQ(client.Receive(1), std::string(1, 0));
  // Several at once, behind a wait that another client ends.
  client.Send("\x06" + number(1) + text("late") + "\x08" + text("late") +
              "\x08" + text("late"));
  const auto other = *Client(*server, "");
  ASSERT_TRUE(other->Set("late", "").ok());
  EXPECT_EQ(client.Receive(17), std::string(1, 0) + number(1) + number(0));
  // Absurd lengths are not believed.
  client.Send("\x03" + number(~uint64_t{0}));
  EXPECT_TRUE(client.IsClosed());
}

TEST(TcpStoreTest, LostServerIsUnavailable) {
  auto server = StartServer("secret");
  const auto store = *Client(*server, "secret");
  std::thread stopper([&] { server.reset(); });
  const absl::Status status = store->Get("never", kLong).status();
  stopper.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("'never'"));
}

TEST(TcpStoreTest, NobodyThere) {
  auto server = StartServer("secret");
  const int port = server->port();
  server.reset();
  const absl::Status status =
      TcpStore::Connect({.host = "127.0.0.1", .port = port, .timeout = kShort})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("127.0.0.1:" + std::to_string(port)));
}

TEST(TcpStoreTest, ClientMayComeFirst) {
  // A port that is free now.
  int port = 0;
  {
    auto listener = Listen("127.0.0.1", 0);
    ASSERT_TRUE(listener.ok());
    port = LocalPort(listener->get());
  }
  std::thread client([port] {
    auto store = TcpStore::Connect({.host = "127.0.0.1",
                                    .port = port,
                                    .token = "secret",
                                    .timeout = kLong});
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_TRUE((*store)->Set("a", "b").ok());
  });
  auto server = StoreServer::Start(
      {.host = "127.0.0.1", .port = port, .token = "secret"});
  client.join();
  ASSERT_TRUE(server.ok()) << server.status();
}

TEST(TcpStoreTest, TakenPort) {
  const auto server = StartServer("secret");
  EXPECT_EQ(StoreServer::Start({.host = "127.0.0.1", .port = server->port()})
                .status()
                .code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(TcpStoreTest, ServerWaitsForItsClients) {
  const auto server = StartServer("secret");
  auto store = *Client(*server, "secret");
  ASSERT_TRUE(store->Set("a", "b").ok());
  EXPECT_FALSE(server->WaitUntilUnused(kShort));
  std::thread leaver([&] { store.reset(); });
  EXPECT_TRUE(server->WaitUntilUnused(kLong));
  leaver.join();
}

TEST(TcpStoreTest, TokensDiffer) {
  EXPECT_EQ(MakeJobToken().size(), 32u);
  EXPECT_NE(MakeJobToken(), MakeJobToken());
}

TEST(StoreServerTest, ListensWhereItIsReachedOnly) {
  const auto server = StoreServer::Start({.host = "127.0.0.2"});
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->port();
  EXPECT_TRUE(
      TcpStore::Connect({.host = "127.0.0.2", .port = port, .timeout = kLong})
          .ok());
  EXPECT_FALSE(
      TcpStore::Connect({.host = "127.0.0.1", .port = port, .timeout = kShort})
          .ok());
}

TEST(StoreServerTest, ListensEverywhereWhenInDoubt) {
  EXPECT_EQ(ListenAddress("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(ListenAddress("::1"), "::1");
  EXPECT_EQ(ListenAddress("localhost"), "localhost");
  EXPECT_EQ(ListenAddress(""), "");
  EXPECT_EQ(ListenAddress("192.0.2.1"), "");  // nobody's: RFC 5737
  EXPECT_EQ(ListenAddress("no such host"), "");
  const auto server = StoreServer::Start({.host = "192.0.2.1"});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE(
      TcpStore::Connect(
          {.host = "127.0.0.1", .port = (*server)->port(), .timeout = kLong})
          .ok());
}

}  // namespace
}  // namespace shardgraph
