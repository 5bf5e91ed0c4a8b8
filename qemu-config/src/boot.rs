//! Boots a cluster.
//!
//! ```text
//!   check ─▶ provision ─▶ state directory ─▶ device ─▶ every QEMU at once, log keeper ─▶ all ready
//!         ─▶ remote memory
//! ```
//!
//! Steps before the state directory leave nothing behind when they fail. From there on, a failure
//! or Ctrl-C takes down what was started.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use qnic_images::Program;

use crate::accel::Accel;
use crate::dirs::{create_log, ClusterDir};
use crate::host_node::{self, HostNode};
use crate::manifest::{now_seconds, HostPrograms, Manifest, Mode, VERSION};
use crate::node::Node;
use crate::owned::Owned;
use crate::process::{ProcessId, MARKER};
use crate::provision::{
    check_cancel, check_files, check_image, check_memory, provision, provision_here, NodeImage,
    Parts, SeedTools,
};
use crate::qemu::{arguments, seed_file, Boots, DiskFormat, Machine};
use crate::ready::failed;
use crate::share;
use crate::spawn::spawn;
use crate::state::Runtime;
use crate::wait::Deadline;
use crate::{
    device, emulated_clock, mpi, remote_memory, seed, ssh_key, swap, teardown, BootOptions, Cancel,
    ClusterSpec, Error, NodeSpec, Result,
};

/// Added to QEMU's niceness, so that the device, which many guests wait for, comes first.
const QEMU_NICE: i32 = 10;

/// How much longer than the guest image a disk image may take to get ready.
const TIMES_OF_DISK_IMAGES: u32 = 4;

/// Time for the device process to listen.
const DEVICE_LIMIT: Duration = Duration::from_secs(30);

/// Boots `spec`. Returns its nodes and, if the cluster ends with this process, what ends it.
pub(crate) fn boot(
    spec: &ClusterSpec,
    options: &BootOptions,
) -> Result<(ClusterDir, Vec<Node>, Option<Owned>)> {
    spec.validate()?;
    spec.check_private_key()?;
    check_files(spec)?;
    match options.host {
        true => host_node::check(spec)?,
        false => check_memory(spec)?,
    }
    if options.runtime.names().contains(&spec.name) {
        // To fail early. The check that counts is made with the directory.
        check_name(spec, &options.runtime.lock()?, &options.runtime)?;
    }
    if options.host {
        return boot_here(spec, options);
    }
    let parts = provision(spec, options)?;
    for (node, image) in spec.nodes.iter().zip(&parts.images) {
        if let NodeImage::Guest(image) = image {
            check_image(node, image)?;
        }
    }
    let mut owned = make_dir(spec, options, parts.accel.accel, None)?;
    let dir = owned.dir.clone();
    let dies_with_us = options.mode == Mode::Attached;
    start_devices(parts.device.as_deref(), spec, options, &mut owned)?;
    options.progress.step("booting");
    let nodes = nodes_of(spec, &dir, None, options.cancel.as_ref());
    let emulated = parts.accel.accel == Accel::Tcg;
    let tsc_khz = emulated.then(emulated_clock::tsc_khz).flatten();
    let disks = options.runtime.disks(&spec.name);
    seeds(&parts, spec, &dir, &disks)?;
    for (node, image) in nodes.iter().zip(&parts.images) {
        let port = spec.ethernet_port(node.name());
        let machine = Machine {
            cluster: &spec.name,
            node: &node.spec,
            dir: &dir,
            disks: &disks,
            boots: match image {
                NodeImage::Guest(image) => Boots::Guest(image),
                NodeImage::Disk(image, _) => Boots::Disk(image, DiskFormat::of(image)?),
            },
            accel: parts.accel.accel,
            tsc_khz,
            ethernet: port.map(|port| (port, spec.ethernet().mtu)),
        };
        if let (Some(program), Some(share)) = (&parts.virtiofsd, &node.spec.share) {
            let place = (dir.path(), &node.dir);
            owned
                .children
                .push(share::start(program, share, place, dies_with_us)?);
        }
        let child = start_qemu(&parts.qemu, &machine, dies_with_us)?;
        owned.children.push(child);
        let state = match image {
            NodeImage::Guest(_) => "booting",
            NodeImage::Disk(..) => "booting its disk image, until cloud-init has ended",
        };
        options.progress.node(node.name(), state);
    }
    let keeper = start_log_keeper(&parts.log_keeper, spec, &nodes, &owned, dies_with_us)?;
    owned.children.push(keeper);
    await_all(spec, &nodes, &dir, options)?;
    prepare(spec, &nodes, options)?;
    booted(nodes, owned, options.mode)
}

/// Does in guests that are ready what takes commands in them.
fn prepare(spec: &ClusterSpec, nodes: &[Node], options: &BootOptions) -> Result<()> {
    swap::turn_on(spec, nodes, options)?;
    remote_memory::set_up(spec, nodes, options)?;
    mpi::set_up(spec, nodes, options)
}

/// Makes the key of the cluster and the volumes that its disk images are told by how to join.
fn seeds(parts: &Parts, spec: &ClusterSpec, dir: &ClusterDir, disks: &Path) -> Result<()> {
    let Some(SeedTools {
        xorriso,
        ssh_keygen,
    }) = &parts.seed_tools
    else {
        return Ok(());
    };
    let key = ssh_key::make(ssh_keygen, &dir.ssh_key())?;
    for (node, image) in spec.nodes.iter().zip(&parts.images) {
        if let NodeImage::Disk(_, files) = image {
            let volume = disks.join(seed_file(&node.name));
            let scratch = volume.with_extension("d");
            seed::make(xorriso, (spec, node), files, &key, (&scratch, &volume))?;
        }
    }
    Ok(())
}

/// Boots a cluster without guests: device processes, and nothing for nodes until they run
/// commands.
fn boot_here(
    spec: &ClusterSpec,
    options: &BootOptions,
) -> Result<(ClusterDir, Vec<Node>, Option<Owned>)> {
    let (programs, device, log_keeper) = provision_here(spec, options)?;
    // Nothing is emulated; the manifest says that there are no guests.
    let mut owned = make_dir(spec, options, Accel::Kvm, Some(&programs))?;
    let dir = owned.dir.clone();
    start_devices(device.as_deref(), spec, options, &mut owned)?;
    let nodes = nodes_of(spec, &dir, Some(&programs), options.cancel.as_ref());
    if spec.needs_device() {
        let dies_with_us = options.mode == Mode::Attached;
        let keeper = start_log_keeper(&log_keeper, spec, &nodes, &owned, dies_with_us)?;
        owned.children.push(keeper);
    }
    booted(nodes, owned, options.mode)
}

fn start_devices(
    program: Option<&Path>,
    spec: &ClusterSpec,
    options: &BootOptions,
    owned: &mut Owned,
) -> Result<()> {
    check_cancel(options)?;
    let Some(program) = program else {
        return Ok(());
    };
    for process in spec.device_processes() {
        let step = format!("starting the process {}", device::name(process));
        options.progress.step(&step);
        let deadline = Deadline::new(Some(DEVICE_LIMIT), options.cancel.as_ref());
        let command = device::command(program, &options.device_prefix);
        let dies_with_us = options.mode == Mode::Attached;
        let child = device::start(command, spec, &owned.dir, process, dies_with_us, &deadline)?;
        owned.children.push(child);
    }
    Ok(())
}

fn booted(
    nodes: Vec<Node>,
    owned: Owned,
    mode: Mode,
) -> Result<(ClusterDir, Vec<Node>, Option<Owned>)> {
    let dir = owned.dir.clone();
    dir.mark_booted()?;
    if mode == Mode::Detached {
        owned.detach();
        return Ok((dir, nodes, None));
    }
    Ok((dir, nodes, Some(owned)))
}

/// The nodes of the cluster in `dir`, which have no guests if there are programs for that.
pub(crate) fn nodes_of(
    spec: &ClusterSpec,
    dir: &ClusterDir,
    programs: Option<&HostPrograms>,
    cancel: Option<&Cancel>,
) -> Vec<Node> {
    let node = |spec: &NodeSpec| Node {
        spec: spec.clone(),
        dir: dir.node(&spec.name),
        cancel: cancel.cloned(),
        host: programs.map(|programs| Arc::new(HostNode::new(spec, dir, programs))),
    };
    spec.nodes.iter().map(node).collect()
}

/// Fails if the name is taken; removes what a dead program left under it. `_making`
/// shows that no other process makes or removes clusters.
fn check_name(spec: &ClusterSpec, _making: &File, runtime: &Runtime) -> Result<()> {
    let dir = runtime.dir(&spec.name);
    if !dir.path().exists() || teardown::sweep_one(runtime, &spec.name)? {
        return Ok(());
    }
    let busy = dir.try_lock()?.is_none();
    let pid = if busy { dir.owner() } else { None };
    Err(Error::InUse {
        name: spec.name.clone(),
        pid,
    })
}

/// Makes the state directory and the disks.
fn make_dir(
    spec: &ClusterSpec,
    options: &BootOptions,
    accel: Accel,
    programs: Option<&HostPrograms>,
) -> Result<Owned> {
    let runtime = &options.runtime;
    let making = runtime.lock()?;
    check_name(spec, &making, runtime)?;
    let manifest = Manifest {
        version: VERSION.to_owned(),
        mode: options.mode,
        accel,
        owner: ProcessId::own(),
        created: now_seconds(),
        disks: runtime.disks(&spec.name),
        host: programs.cloned(),
    };
    let (dir, lock) = runtime.create(spec, &manifest)?;
    Ok(Owned {
        runtime: runtime.clone(),
        name: spec.name.clone(),
        dir,
        lock: Some(lock),
        children: Vec::new(),
    })
}

fn start_qemu(qemu: &Program, machine: &Machine<'_>, dies_with_us: bool) -> Result<Child> {
    let dir = machine.dir.node(&machine.node.name);
    create_log(&dir.console())?;
    create_log(&dir.ready())?;
    let log = create_log(&dir.qemu_log())?;
    let errors = log.try_clone();
    let errors = errors.map_err(Error::io("open", &dir.qemu_log()))?;
    let mut command = Command::new(&qemu.program);
    command.args(&qemu.args).args(arguments(machine));
    command.envs(qemu.env.iter().cloned());
    command.env(MARKER, machine.dir.path());
    // The overlay of a disk image is a temporary file.
    command.env("TMPDIR", machine.disks);
    command.stdin(Stdio::null()).stdout(log).stderr(errors);
    let child = spawn(command, dies_with_us, QEMU_NICE);
    let child = child.map_err(Error::io("start", &qemu.program))?;
    let Some(id) = ProcessId::of(child.id() as i32) else {
        return Err(failed(&dir, "QEMU ended at once"));
    };
    id.save(&dir.qemu_pid())?;
    Ok(child)
}

/// Starts the log keeper of the cluster. It ends when all other processes of the cluster have, even
/// if this one ends first.
fn start_log_keeper(
    program: &Path,
    spec: &ClusterSpec,
    nodes: &[Node],
    owned: &Owned,
    dies_with_us: bool,
) -> Result<Child> {
    let dir = &owned.dir;
    let writers = owned.children.iter();
    let pids: Vec<_> = writers.map(|child| child.id().to_string()).collect();
    let mut command = Command::new(program);
    command.arg(pids.join(","));
    for node in nodes.iter().filter(|node| node.is_guest()) {
        let node = &node.dir;
        command.args([node.console(), node.ready(), node.qemu_log()]);
    }
    if spec.needs_device() {
        let processes = spec.device_processes().into_iter();
        command.args(processes.map(|process| dir.device(process).log()));
    }
    command.env(MARKER, dir.path());
    let complaints = create_log(&dir.log_keeper_log())?;
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(complaints);
    spawn(command, dies_with_us, 0).map_err(Error::io("start", program))
}

/// Waits for every node. The first failure, also of a device process, ends all waits.
fn await_all(
    spec: &ClusterSpec,
    nodes: &[Node],
    dir: &ClusterDir,
    options: &BootOptions,
) -> Result<()> {
    let (report, reports) = std::sync::mpsc::channel();
    let stop = Cancel::new().map_err(Error::io("open", Path::new("a socket pair")))?;
    let both = || options.cancel.iter().chain([&stop]);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for node in nodes {
            let limit = match node.spec.image {
                Some(_) => options.ready_limit.saturating_mul(TIMES_OF_DISK_IMAGES),
                None => options.ready_limit,
            };
            let (report, deadline) = (report.clone(), Deadline::new(Some(limit), both()));
            scope.spawn(move || {
                let ready = node.wait_ready_with(0, limit, &deadline);
                let ready = ready.map(|release| (release, started.elapsed()));
                // The receiver lives until every sender has gone.
                let _ = report.send((Some(node.name()), ready));
            });
        }
        for process in spec.device_processes() {
            let Some(device) = ProcessId::load(&dir.device(process).pid()) else {
                continue;
            };
            let (report, deadline) = (report.clone(), Deadline::new(None, both()));
            scope.spawn(move || {
                let open = device.open();
                let error = match open.is_none_or(|process| process.wait(&deadline).is_ok()) {
                    true => device::ended(dir, process),
                    false => Error::Interrupted,
                };
                let _ = report.send((None, Err(error)));
            });
        }
        drop(report);
        let mut ready = 0;
        let mut first = Ok(());
        for (node, outcome) in reports {
            match (node, outcome) {
                (Some(node), Ok((release, took))) => {
                    options.progress.ready(node, &release, took);
                    ready += 1;
                }
                (_, Err(error)) if ready < nodes.len() => first = first.and(Err(error)),
                _ => {}
            }
            if ready == nodes.len() || first.is_err() {
                stop.cancel();
            }
        }
        first
    })
}
