//! Gets everything a cluster is booted from: accelerator, QEMU, images, programs.

use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use procfs::Current;
use qnic_images::{Cache, GuestFile, GuestImage, Program, Provisioner};

use crate::accel::{decide, AccelDecision};
use crate::boot::BootOptions;
use crate::guest_process::HELPER;
use crate::{
    guest_program, host_program, programs, repository, ByteSize, ClusterSpec, Error, NodeSpec,
    Result,
};

/// Where guests have the example of a module that uses the datagrams of `qnic.ko`.
const EXAMPLE: &str = "/root/qnic_ping.ko";

/// What a cluster is booted from.
pub(crate) struct Parts {
    pub(crate) accel: AccelDecision,
    pub(crate) qemu: Program,
    pub(crate) images: Vec<GuestImage>,
    pub(crate) device: Option<PathBuf>,
    pub(crate) log_keeper: PathBuf,
}

/// Gets everything that `spec` needs; may download and build.
pub(crate) fn provision(spec: &ClusterSpec, options: &BootOptions) -> Result<Parts> {
    let progress = &options.progress;
    progress.step("looking for an accelerator");
    let accel = decide(spec.accel)?;
    let provisioner = Provisioner::new(Cache::of_user()?, Arc::clone(progress));
    let qemu = provisioner.qemu()?;
    check_cancel(options)?;
    progress.step("building the programs for guests");
    let helper = executable(HELPER, guest_program(programs::EXEC)?);
    check_cancel(options)?;
    let mut apps = Vec::new();
    if spec.has_nics() {
        for (path, program) in [
            (programs::APP_PATH, programs::APP),
            (programs::REMOTE_MEMORY_PATH, programs::REMOTE_MEMORY),
        ] {
            apps.push(executable(path, guest_program(program)?));
            check_cancel(options)?;
        }
    }
    let mut made: HashMap<_, GuestImage> = HashMap::new();
    let mut images = Vec::new();
    for node in &spec.nodes {
        let image = match made.entry((node.kernel, node.nic, &node.files)) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(entry) => {
                let ours = apps.iter().filter(|_| node.nic).chain([&helper]);
                entry.insert(image(&provisioner, node, ours)?)
            }
        };
        images.push(image.clone());
        check_cancel(options)?;
    }
    let device = if spec.has_nics() {
        progress.step("building the device process");
        Some(host_program(programs::DEVICE)?)
    } else {
        None
    };
    let log_keeper = host_program(programs::LOG_KEEPER)?;
    Ok(Parts {
        accel,
        qemu,
        images,
        device,
        log_keeper,
    })
}

fn executable(guest_path: &str, host_path: PathBuf) -> GuestFile {
    GuestFile {
        guest_path: guest_path.into(),
        host_path,
        mode: 0o755,
    }
}

/// The image of `node`, with `ours` and its own files in it.
fn image<'a>(
    provisioner: &Provisioner,
    node: &NodeSpec,
    ours: impl Iterator<Item = &'a GuestFile>,
) -> Result<GuestImage> {
    let module = if node.nic {
        let gone = "the sources of the kernel module are not there: run from a checkout";
        let sources = repository().ok_or_else(|| Error::Host(gone.to_owned()))?;
        Some(provisioner.module(node.kernel, &sources)?)
    } else {
        None
    };
    let files = node.files.iter().map(|file| GuestFile {
        guest_path: file.to.clone(),
        host_path: file.from.clone(),
        mode: file.mode,
    });
    let example = module.iter().map(|module| GuestFile {
        guest_path: EXAMPLE.into(),
        host_path: provisioner.example(module),
        mode: 0o644,
    });
    let extra: Vec<_> = ours.cloned().chain(example).chain(files).collect();
    Ok(provisioner.guest_image(node.kernel, module.as_deref(), &extra)?)
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

/// Memory that a stock kernel keeps for itself, and what its first programs need.
const KERNEL_MEMORY: ByteSize = ByteSize::mib(64);

/// Fails if the guest of a node could not unpack its image: what it then lacks would be told by
/// nobody.
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
    fn a_guest_that_cannot_unpack_its_image_is_refused_with_what_it_needs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(40 << 20).unwrap();
        let image = GuestImage {
            vmlinuz: PathBuf::new(),
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
