//! Gets everything a cluster is booted from: accelerator, QEMU, images, programs.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use procfs::Current;
use qnic_images::{Cache, GuestFile, GuestImage, KernelSeries, Program, Progress, Provisioner};
use rustix::process::{getrlimit, Resource};

use crate::accel::{decide, AccelDecision};
use crate::boot_options::BootOptions;
use crate::guest_process::HELPER;
use crate::manifest::HostPrograms;
use crate::qemu::NIC_QUEUES;
use crate::{mpi, programs, ByteSize, Cancel, ClusterSpec, Error, NodeSpec, Result};

/// The path in guests of an example module, which uses the datagrams of `qnic.ko`.
const EXAMPLE: &str = "/root/qnic_ping.ko";

/// Added to the niceness of the module's build, so that module and device process are ready
/// together. With less, the device process is finished alone, on one processor; with more, the
/// module is.
const MODULE_NICE: i32 = 4;
/// Added to the niceness of what fetches the files of guests, which are needed last.
const GUESTS_NICE: i32 = 10;

/// What a cluster is booted from.
pub(crate) struct Parts {
    pub(crate) accel: AccelDecision,
    pub(crate) qemu: Program,
    /// Serves directories, if a node has one.
    pub(crate) virtiofsd: Option<Program>,
    /// What each node boots, in the order of the nodes.
    pub(crate) images: Vec<NodeImage>,
    /// What disk images are told by how to join, if there are any.
    pub(crate) seed_tools: Option<SeedTools>,
    pub(crate) device: Option<PathBuf>,
    pub(crate) log_keeper: PathBuf,
}

/// What a node boots.
pub(crate) enum NodeImage {
    /// The guest image.
    Guest(GuestImage),
    /// A disk image, which gets these files.
    Disk(PathBuf, Vec<GuestFile>),
}

/// Programs that make what disk images are told.
pub(crate) struct SeedTools {
    pub(crate) xorriso: Program,
    pub(crate) ssh_keygen: Program,
}

/// Gets everything that `spec` needs; may download and build.
///
/// Cargo builds the programs while QEMU and the files of guests are fetched, and the module is
/// built: the one computes while the other waits for the network. The programs take longer, and the
/// last of them one processor alone, so the module's build gives way to them.
///
/// ```text
///   accelerator ─┬─▶ programs of guests and host ───────────────┬─▶ image of each guest
///                └─▶ QEMU ─▶ compilers ─┬─▶ module ─────────────┤
///                                       └─▶ kernel, their files ┘
/// ```
pub(crate) fn provision(spec: &ClusterSpec, options: &BootOptions) -> Result<Parts> {
    let progress = &options.progress;
    progress.step("looking for an accelerator");
    let accel = decide(spec.accel)?;
    let provisioner = Provisioner::new(Cache::of_user()?, Arc::clone(progress));
    let cancels: Vec<_> = options.cancel.iter().collect();
    let (programs, (qemu, modules)) = side_by_side(
        &cancels,
        |cancels| programs_for(spec, options.app, progress.as_ref(), cancels),
        |cancels| {
            give_way(MODULE_NICE);
            fetch(spec, &provisioner, cancels)
        },
    )?;
    let shares = spec.nodes.iter().any(|node| node.share.is_some());
    let virtiofsd = shares.then(|| cancellable(&cancels, || Ok(provisioner.virtiofsd()?)));
    let virtiofsd = virtiofsd.transpose()?;
    let disks = spec.nodes.iter().any(|node| node.image.is_some());
    let seed_tools = disks.then(|| cancellable(&cancels, || seed_tools(&provisioner)));
    let seed_tools = seed_tools.transpose()?;
    let mpi = || mpi::files(spec, &provisioner, progress.as_ref(), &cancels);
    let mut added = cancellable(&cancels, mpi)?;
    let of_verbs = || cancellable(&cancels, || Ok(provisioner.verbs_programs()?));
    let of_ucx = || cancellable(&cancels, || Ok(provisioner.ucx_programs()?));
    let verbs = spec.verbs.then(of_verbs).transpose()?;
    let ucx = (spec.verbs && spec.mpi).then(of_ucx).transpose()?;
    // They have libraries in common.
    for file in verbs.into_iter().chain(ucx).flatten() {
        if added.iter().all(|it| it.guest_path != file.guest_path) {
            added.push(file);
        }
    }
    let mut made: HashMap<_, GuestImage> = HashMap::new();
    let mut images = Vec::new();
    for node in &spec.nodes {
        let ours = programs.of_guests.iter();
        let ours = ours.filter(|file| node.nic || file.guest_path == Path::new(HELPER));
        if let Some(image) = &node.image {
            let files = ours.cloned().chain(files_of(node)).collect();
            images.push(NodeImage::Disk(image.clone(), files));
            continue;
        }
        let image = match made.entry((node.kernel, node.nic, node.driver, &node.files)) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(entry) => {
                let module = modules.get(&node.kernel).filter(|_| node.has_module());
                let added = added.iter().filter(|_| node.has_module());
                let make = || image(&provisioner, node, module, ours.chain(added));
                entry.insert(cancellable(&cancels, make)?)
            }
        };
        images.push(NodeImage::Guest(image.clone()));
        check_cancel(options)?;
    }
    Ok(Parts {
        accel,
        qemu,
        virtiofsd,
        images,
        seed_tools,
        device: programs.device,
        log_keeper: programs.log_keeper,
    })
}

/// Gets everything that `spec` boots from, as [`crate::Cluster::boot`] does, and boots nothing. Returns the
/// programs of this project that it has built or found.
///
/// # Errors
/// As [`crate::Cluster::boot`] until then.
pub fn prepare(spec: &ClusterSpec, options: &BootOptions) -> Result<Vec<PathBuf>> {
    spec.validate()?;
    check_files(spec)?;
    if !options.host {
        drop(provision(spec, options)?);
    }
    let cancels: Vec<_> = options.cancel.iter().collect();
    let progress = options.progress.as_ref();
    let made = programs_for(spec, options.app, progress, &cancels)?;
    let provider = spec.mpi.then(|| mpi::provider(progress, &cancels));
    let of_guests = made.of_guests.into_iter().map(|file| file.host_path);
    let others = made.device.into_iter().chain([made.log_keeper]);
    Ok(of_guests
        .chain(others)
        .chain(provider.transpose()?)
        .collect())
}

/// The programs of a cluster without guests: those of its nodes, device process, log keeper.
pub(crate) fn provision_here(
    spec: &ClusterSpec,
    options: &BootOptions,
) -> Result<(HostPrograms, Option<PathBuf>, PathBuf)> {
    let cancels: Vec<_> = options.cancel.iter().collect();
    let made = programs_for(spec, options.app, options.progress.as_ref(), &cancels)?;
    let mut files = made.of_guests.into_iter().map(|file| file.host_path);
    let helper = files.next().unwrap_or_default();
    let app = files.next().unwrap_or_else(|| helper.clone());
    let directory = app.parent().unwrap_or(Path::new("/")).to_owned();
    let programs = HostPrograms { helper, directory };
    Ok((programs, made.device, made.log_keeper))
}

/// Makes this thread, and the programs that it starts, give way to the others of this process.
fn give_way(nice: i32) {
    // A failure costs time, and changes nothing else.
    let _ = rustix::process::nice(nice);
}

/// Does both at once, each in a thread of its own. The first failure ends the other one, and so
/// does each of `outer`: both functions are given the cancels that end them.
fn side_by_side<A: Send, B: Send>(
    outer: &[&Cancel],
    one: impl FnOnce(&[&Cancel]) -> Result<A> + Send,
    other: impl FnOnce(&[&Cancel]) -> Result<B> + Send,
) -> Result<(A, B)> {
    let no_end = |error| Error::Host(format!("cannot prepare to be interrupted: {error}"));
    let failed = Cancel::new().map_err(no_end)?;
    let cancels: Vec<_> = outer.iter().copied().chain([&failed]).collect();
    let (one, other) = std::thread::scope(|scope| {
        let one = scope.spawn(|| one(&cancels).inspect_err(|_| failed.cancel()));
        let other = scope.spawn(|| other(&cancels).inspect_err(|_| failed.cancel()));
        (
            one.join().unwrap_or_else(|panic| resume_unwind(panic)),
            other.join().unwrap_or_else(|panic| resume_unwind(panic)),
        )
    });
    match (one, other) {
        // How each of them has ended does not matter then.
        _ if outer.iter().any(|cancel| cancel.is_cancelled()) => Err(Error::Interrupted),
        // The failure of the other one has ended this one.
        (Err(Error::Interrupted), Err(error)) => Err(error),
        (one, other) => Ok((one?, other?)),
    }
}

/// Does `work`. A pull of one of `cancels` ends the programs that it runs, and the result is
/// [`Error::Interrupted`].
fn cancellable<T>(cancels: &[&Cancel], work: impl FnOnce() -> Result<T>) -> Result<T> {
    let fds: Vec<_> = cancels.iter().map(|cancel| cancel.as_fd()).collect();
    let result = qnic_images::cancelled_by(&fds, work);
    match result.map_err(qnic_images::Error::from)? {
        Err(Error::Images(qnic_images::Error::Cancelled)) => Err(Error::Interrupted),
        result => result,
    }
}

/// The programs of a cluster.
struct Programs {
    /// For guests with a NIC; the others have the helper alone.
    of_guests: Vec<GuestFile>,
    device: Option<PathBuf>,
    log_keeper: PathBuf,
}

/// Builds the programs that `spec` needs, with `app` for its guests.
fn programs_for(
    spec: &ClusterSpec,
    app: programs::Program<'_>,
    progress: &dyn Progress,
    cancels: &[&Cancel],
) -> Result<Programs> {
    let links: &[_] = match app == programs::APP {
        true => &[programs::REMOTE_MEMORY_PATH],
        false => &[],
    };
    let app = spec.has_nics().then_some(app);
    let mut wanted = vec![programs::EXEC];
    wanted.extend(app);
    wanted.push(programs::LOG_KEEPER);
    wanted.extend(spec.needs_device().then_some(programs::DEVICE));
    let compiles = || progress.part("programs", "cargo builds them");
    let mut paths = programs::provide(&wanted, cancels, &compiles)?.into_iter();
    progress.part("programs", "there");
    let helper = paths.next().map(|path| executable(HELPER, &[], path));
    let app = app.and_then(|_| paths.next());
    let app = app.map(|path| executable(programs::APP_PATH, links, path));
    Ok(Programs {
        of_guests: helper.into_iter().chain(app).collect(),
        log_keeper: paths.next().unwrap_or_default(),
        device: paths.next(),
    })
}

fn seed_tools(provisioner: &Provisioner) -> Result<SeedTools> {
    Ok(SeedTools {
        xorriso: provisioner.xorriso()?,
        ssh_keygen: provisioner.ssh_keygen()?,
    })
}

/// Fetches QEMU and all files of the guests of `spec` but our programs. Returns the modules by
/// kernel.
fn fetch(
    spec: &ClusterSpec,
    provisioner: &Provisioner,
    cancels: &[&Cancel],
) -> Result<(Program, HashMap<KernelSeries, PathBuf>)> {
    let kernels = |module: bool| -> BTreeSet<_> {
        let of_nodes = spec.nodes.iter();
        let of_nodes = of_nodes.filter(|node| match module {
            true => node.has_module(),
            false => node.image.is_none(),
        });
        of_nodes.map(|node| node.kernel).collect()
    };
    let qemu = cancellable(cancels, || Ok(provisioner.qemu()?))?;
    let with_module = kernels(true);
    // While they are unpacked, no other process can ask the mirror for anything.
    each(&with_module, cancels, |kernel| {
        Ok(provisioner.module_parts(kernel, &programs::module_sources()?)?)
    })?;
    let (modules, _) = side_by_side(
        cancels,
        |cancels| {
            each(&with_module, cancels, |kernel| {
                let sources = programs::module_sources()?;
                Ok((kernel, provisioner.module(kernel, &sources)?))
            })
        },
        |cancels| {
            give_way(GUESTS_NICE);
            each(&kernels(false), cancels, |kernel| {
                Ok(provisioner.guest_parts(kernel)?)
            })
        },
    )?;
    Ok((qemu, modules.into_iter().collect()))
}

/// Does `work` for one kernel after the other, until one of `cancels` is pulled.
fn each<T>(
    kernels: &BTreeSet<KernelSeries>,
    cancels: &[&Cancel],
    work: impl Fn(KernelSeries) -> Result<T>,
) -> Result<Vec<T>> {
    let of = |kernel: &KernelSeries| cancellable(cancels, || work(*kernel));
    kernels.iter().map(of).collect()
}

fn executable(guest_path: &str, links: &[&str], host_path: PathBuf) -> GuestFile {
    GuestFile {
        guest_path: guest_path.into(),
        host_path,
        mode: 0o755,
        links: links.iter().map(PathBuf::from).collect(),
    }
}

/// The files that the cluster file has for `node`.
fn files_of(node: &NodeSpec) -> impl Iterator<Item = GuestFile> + '_ {
    node.files.iter().map(|file| GuestFile {
        guest_path: file.to.clone(),
        host_path: file.from.clone(),
        mode: file.mode,
        links: Vec::new(),
    })
}

/// The image of `node`, with `ours` and its own files in it.
fn image<'a>(
    provisioner: &Provisioner,
    node: &NodeSpec,
    module: Option<&PathBuf>,
    ours: impl Iterator<Item = &'a GuestFile>,
) -> Result<GuestImage> {
    let example = module.map(|module| GuestFile {
        guest_path: EXAMPLE.into(),
        host_path: provisioner.example(module),
        mode: 0o644,
        links: Vec::new(),
    });
    let extra: Vec<_> = ours.cloned().chain(example).chain(files_of(node)).collect();
    let module = module.map(PathBuf::as_path);
    Ok(provisioner.guest_image(node.kernel, module, &extra)?)
}

/// Fails once the boot has been cancelled.
pub(crate) fn check_cancel(options: &BootOptions) -> Result<()> {
    match &options.cancel {
        Some(cancel) if cancel.is_cancelled() => Err(Error::Interrupted),
        _ => Ok(()),
    }
}

/// Fails if the guests want more memory than this machine has.
pub(crate) fn check_memory(spec: &ClusterSpec) -> Result<()> {
    let Some(available) = available_memory() else {
        return Ok(());
    };
    let wanted = spec.total_memory();
    if wanted <= available {
        return Ok(());
    }
    let available = available.whole_mib();
    Err(Error::Host(format!(
        "the nodes of cluster {} want {wanted} of memory in all, but this machine has {available}MiB free: \
         use fewer nodes or give each less",
        spec.name
    )))
}

/// Open files of a device process for each NIC: some three for each queue, and those of its
/// guest's memory.
const FILES_OF_NIC: usize = 3 * NIC_QUEUES + 2;
/// Those that it has beside them.
const FILES_BESIDE: usize = 40;

/// Fails if a device process would not get the files that its NICs need: its guests would hang or
/// end, with an error of a queue.
pub(crate) fn check_files(spec: &ClusterSpec) -> Result<()> {
    // A device process takes all that it may.
    let limit = getrlimit(Resource::Nofile).maximum;
    check_files_within(spec, limit.unwrap_or(u64::MAX))
}

fn check_files_within(spec: &ClusterSpec, limit: u64) -> Result<()> {
    let nics_of = |process: &Option<&str>| spec.nics_of(*process).len();
    let most = spec.device_processes().iter().map(nics_of).max();
    let Some(nics) = most else { return Ok(()) };
    let wanted = (FILES_BESIDE + nics * FILES_OF_NIC) as u64;
    if wanted <= limit {
        return Ok(());
    }
    Err(Error::Host(format!(
        "the device process of {nics} NICs of cluster {} needs {wanted} open files, but a process may \
         have {limit} here: raise the hard limit (ulimit -Hn), or divide the nodes among several \
         processes",
        spec.name
    )))
}

/// Memory that a stock kernel keeps for itself, and what its first programs need.
const KERNEL_MEMORY: ByteSize = ByteSize::mib(64);

/// Fails if the guest of a node has too little memory to unpack its image: it would boot without
/// some of its files, and no message.
pub(crate) fn check_image(node: &NodeSpec, image: &GuestImage) -> Result<()> {
    let path = &image.initrd;
    let metadata = std::fs::metadata(path).map_err(Error::io("look at", path))?;
    let needed = needed_memory(metadata.len());
    if node.memory >= needed {
        return Ok(());
    }
    Err(Error::Host(format!(
        "node {}: its image of {}MiB needs a guest with {needed} of memory, not {}: set memory",
        node.name,
        ByteSize(metadata.len()).whole_mib(),
        node.memory
    )))
}

/// Memory of a guest that unpacks an image of so many bytes: the image is there twice meanwhile.
fn needed_memory(image_bytes: u64) -> ByteSize {
    let bytes = KERNEL_MEMORY.0 + 2 * image_bytes;
    ByteSize::mib(bytes.div_ceil(1 << 20))
}

/// Memory of this machine that can be used without swapping, if it tells.
pub fn available_memory() -> Option<ByteSize> {
    procfs::Meminfo::current().ok()?.mem_available.map(ByteSize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_open_files_that_is_too_low_is_named_before_anything_is_booted() {
        let of = |nodes: usize| {
            let names = (0..nodes).map(|node| NodeSpec::new(format!("n{node}")));
            names.fold(ClusterSpec::new("many"), ClusterSpec::with)
        };
        assert!(check_files_within(&of(2), 256).is_ok());
        assert!(check_files_within(&of(12), 1024).is_ok());
        let error = check_files_within(&of(12), 512).unwrap_err().to_string();
        for part in ["12 NICs of cluster many", "may have 512", "ulimit -Hn"] {
            assert!(error.contains(part), "no {part}: {error}");
        }
    }

    #[test]
    fn what_fails_ends_what_runs_beside_it_and_is_told() {
        let wait = |cancels: &[&Cancel]| -> Result<()> {
            // The last one is that of the failure.
            cancels.last().unwrap().wait();
            Err(Error::Interrupted)
        };
        let fail = |_: &[&Cancel]| -> Result<()> { Err(Error::Host("broken".to_owned())) };
        for result in [side_by_side(&[], wait, fail), side_by_side(&[], fail, wait)] {
            assert!(matches!(result, Err(Error::Host(why)) if why == "broken"));
        }
        let both = side_by_side(&[], |_| Ok(1), |_| Ok(2));
        assert_eq!(both.unwrap(), (1, 2));
    }

    #[test]
    fn an_interrupt_ends_both() {
        let user = Cancel::new().unwrap();
        let wait = |cancels: &[&Cancel]| -> Result<()> {
            cancels[0].wait();
            Err(Error::Interrupted)
        };
        user.cancel();
        let both = side_by_side(&[&user], wait, wait);
        assert!(matches!(both, Err(Error::Interrupted)));
    }

    #[test]
    fn a_guest_that_cannot_unpack_its_image_is_refused_with_what_it_needs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(40 << 20).unwrap();
        let image = GuestImage {
            vmlinuz: PathBuf::new(),
            vmlinux: None,
            initrd: file.path().to_owned(),
        };
        let of = |mib| NodeSpec {
            memory: ByteSize::mib(mib),
            ..NodeSpec::new("a")
        };
        check_image(&of(144), &image).unwrap();
        let error = check_image(&of(143), &image).unwrap_err().to_string();
        assert!(
            error.contains("node a") && error.contains("144MiB"),
            "{error}"
        );
    }
}
