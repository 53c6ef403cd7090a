// The headers from outside this repository that tests include besides (cc.bzl).

#include "gmock/gmock.h"
#include "gtest/gtest.h"
