"""What users call in BUILD files of their own."""

def training_run(name, config, args = [], **kwargs):
    """A target that trains: `bazel run //my/package:NAME [-- more flags]`.

    Args:
      name: of the target.
      config: a text format TrainConfig file of the package, or the name of a preset ("quickstart").
      args: further flags and overrides for //tools:train, before those of the command line.
      **kwargs: passed on (visibility, tags, ...).
    """
    is_file = config.endswith(".textproto") or config.startswith(":") or config.startswith("//")
    native.sh_binary(
        name = name,
        srcs = ["//tools:run_train.sh"],
        args = [
            "$(rootpath //tools/train)",
            "--config=" + ("$(rootpath %s)" % config if is_file else config),
        ] + args,
        data = ["//tools/train"] + ([config] if is_file else []),
        **kwargs
    )
