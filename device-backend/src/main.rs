//! The program `qnic-device`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use qnic_device::{Config, ConfigError, Device};
use rustix::process::{getrlimit, setrlimit, Resource};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;

const AFTER_HELP: &str = "\
Examples:
  qnic-device --config pair.toml
  qnic-device --config pair.toml --print-config
  echo '{\"cmd\":\"stats\"}' | nc -U /run/qnic/device.ctl

Configuration file:
  [[nic]]
  name = \"a\"
  node = 0
  socket = \"/run/qnic/a.sock\"
  ram = \"256MiB\"
  [metrics]
  socket = \"/run/qnic/device.ctl\"

When all sockets listen, the line `ready` appears on stdout. Logs go to stderr.

Exit codes:
  0  stopped by SIGTERM or SIGINT; its sockets are removed
  1  an error at run time
  2  a bad command line or configuration";

/// The qnic device process: NICs for QEMU guests and host-mode processes.
#[derive(Parser)]
#[command(version, after_help = AFTER_HELP)]
struct Arguments {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,

    /// Print the configuration with all defaults, and exit
    #[arg(long)]
    print_config: bool,

    /// Form of the log lines
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,

    /// off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: LevelFilter,
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("qnic-device: {error:#}");
            ExitCode::from(if error.is::<ConfigError>() { 2 } else { 1 })
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let config = Config::load(&arguments.config)?;
    if arguments.print_config {
        print!("{}", toml::to_string(&config)?);
        return Ok(());
    }
    start_logging(arguments)?;
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    raise_descriptor_limit();
    let device = Device::start(&config)?;
    println!("ready");
    let stopper = device.stopper();
    let handle = signals.handle();
    let listener = std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            tracing::info!(signal, "stopping");
            stopper.stop();
        }
    });
    let ended = device.wait();
    handle.close();
    let _ = listener.join();
    ended
}

/// A NIC needs some three descriptors for each queue; the usual limit is meant for
/// programs that use `select`.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("cannot raise the limit of open descriptors: {error}");
    }
}

/// What crates below trace is not shown: some of their lines can be caused by a guest without
/// limit. What they log is, within one ([`qnic_device::show_dependencies`]).
fn start_logging(arguments: &Arguments) -> anyhow::Result<()> {
    let filter = Targets::new()
        .with_default(LevelFilter::OFF)
        .with_target("qnic_device", arguments.log_level)
        .with_target("qnic_nic", arguments.log_level)
        .with_target("qnic_links", arguments.log_level);
    let registry = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match arguments.log_format {
        LogFormat::Text => tracing::subscriber::set_global_default(registry.with(lines))?,
        LogFormat::Json => tracing::subscriber::set_global_default(registry.with(lines.json()))?,
    }
    qnic_device::show_dependencies()?;
    Ok(())
}
