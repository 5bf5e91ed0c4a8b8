//! `qnic up`: boots the cluster that a file describes, and leaves it running.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};
use qnic_cluster::{
    AccelChoice, BootOptions, Cancel, Cluster, ClusterOverview, ClusterSpec, ConfigError, Mode,
};

use crate::slurm::{self, SlurmOptions};
use crate::ui;

/// Options of `qnic up`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic up pair.toml                   boot it; end it with \"cargo qnic down\"
  cargo qnic up pair.toml --print-config    check it, and print it with every default
  cargo qnic up pair.toml --accel tcg       emulate, whatever the file says
  cargo qnic up two-hosts.toml --host west  boot the nodes of one of its hosts
  cargo qnic up ring.toml --on slurm        boot it as a job of Slurm (docs/slurm.md)

A cluster file:
  name = \"pair\"             # a-z, 0-9, \"-\"
  accel = \"auto\"            # or \"kvm\", \"tcg\"
  ethernet = true           # false: nodes have no Ethernet port; or { mtu = 4078 }
  [[node]]
  name = \"a\"
  memory = \"256MiB\"
  cpus = 1
  kernel = \"stable\"         # or \"backports\"
  image = \"debian.qcow2\"    # instead of that: a disk image with cloud-init (docs/disk-images.md)
  nic = true                # false: a plain guest
  outside = false           # true: it reaches the networks of this machine, and 10.0.2.2 is this machine
  ethernet = true           # or false, or { mac = \"52:54:00:71:00:07\", ip = \"10.71.0.7\" }
  swap = \"512MiB\"           # a disk with serial \"swap\", on which the guest swaps
  disk = \"1GiB\"             # a blank disk with serial \"disk\"
  files = [{ from = \"hello\", to = \"/usr/bin/hello\", mode = \"755\" }]
  qemu_args = []
  [network]                 # loss, delay, topology, hosts: see examples/torus.toml
  [[remote_memory]]         # a block device in the memory of other nodes
  on = \"n0\"
  size = \"128MiB\"
  replicas = 2
  servers = [\"n1\", \"n2\"]
  serve = \"128MiB\"         # what each server gives; the size if left out
  key = \"5ec2e7\"           # up to 32 hexadecimal digits, or none
  [[node]]
  name = \"n\"                # n0, n1, n2
  count = 3
Only the names are required.

Exit status: 0 once every guest is ready, 1 if one failed or panicked, or was not ready
in time (nothing is left running then), 2 for an error in the file or no file, 130 if interrupted.")]
pub(crate) struct Options {
    /// The cluster file
    file: PathBuf,
    /// Boot the nodes of this host, of those in the file
    #[arg(long)]
    host: Option<String>,
    /// Where its nodes run: "slurm" makes it a job
    #[arg(long, value_name = "ENGINE", conflicts_with_all = ["host", "json"])]
    on: Option<Engine>,
    #[command(flatten)]
    slurm: SlurmOptions,
    /// Print the checked file, every default spelt out, and boot nothing
    #[arg(long)]
    print_config: bool,
    /// Use this accelerator, whatever the file says
    #[arg(long)]
    accel: Option<Accel>,
    /// Seconds each guest may take to get ready; a disk image four times as many
    #[arg(long, default_value_t = 180)]
    timeout: u64,
    /// Describe the running cluster as JSON, as "ps --json" does
    #[arg(long)]
    json: bool,
}

/// What places nodes on hosts.
#[derive(Clone, Copy, ValueEnum)]
enum Engine {
    Slurm,
}

#[derive(Clone, Copy, ValueEnum)]
enum Accel {
    Auto,
    Kvm,
    Tcg,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mut spec = ClusterSpec::load(&options.file)?;
    if let Some(accel) = options.accel {
        spec.accel = match accel {
            Accel::Auto => AccelChoice::Auto,
            Accel::Kvm => AccelChoice::Kvm,
            Accel::Tcg => AccelChoice::Tcg,
        };
    }
    if let Some(host) = &options.host {
        spec = spec.on_host(host).map_err(qnic_cluster::Error::from)?;
    } else if let [hosts @ .., last] = &spec.hosts_to_choose()[..] {
        if !options.print_config && options.on.is_none() {
            let hosts = hosts.join(", ");
            let message =
                format!("say which host of the file this is: --host with one of {hosts}, {last}");
            let error = ConfigError::new("network.host", message);
            return Err(qnic_cluster::Error::from(error).into());
        }
    }
    if options.print_config {
        print!("{}", spec.to_toml()?);
        return Ok(ExitCode::SUCCESS);
    }
    let limit = Duration::from_secs(options.timeout);
    match options.on {
        Some(Engine::Slurm) => return slurm::up(&spec, &options.slurm, limit),
        None => options.slurm.refuse()?,
    }
    let boot = BootOptions {
        runtime: ui::runtime()?,
        cancel: Some(Cancel::on_signals()?),
        progress: ui::progress(),
        ready_limit: limit,
        ..BootOptions::new(Mode::Detached)?
    };
    let started = Instant::now();
    let cluster = Cluster::boot(&spec, &boot)?;
    drop(boot);
    if options.json {
        println!("{}", serde_json::to_string(&ClusterOverview::of(&cluster))?);
    } else {
        let names: Vec<_> = cluster.nodes().iter().map(|node| node.name()).collect();
        let seconds = started.elapsed().as_secs_f32();
        println!(
            "{}: {} ready after {seconds:.1} s ({})",
            cluster.name(),
            names.join(", "),
            cluster.accel()
        );
        for (device, memory) in cluster.spec().remote_memory() {
            println!("{}: {}", memory.on, memory.describe(&device));
        }
    }
    Ok(ExitCode::SUCCESS)
}
