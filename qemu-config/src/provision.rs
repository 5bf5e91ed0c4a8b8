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
    let app = spec.has_nics().then(|| guest_program(programs::APP));
    let app = app
        .transpose()?
        .map(|path| executable(programs::APP_PATH, path));
    check_cancel(options)?;
    let mut made: HashMap<_, GuestImage> = HashMap::new();
    let mut images = Vec::new();
    for node in &spec.nodes {
        let image = match made.entry((node.kernel, node.nic, &node.files)) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(entry) => {
                let ours = app.iter().filter(|_| node.nic).chain([&helper]);
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
    let extra: Vec<_> = ours.cloned().chain(files).collect();
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

/// Memory of this machine that can be used without swapping, if it tells.
pub fn available_memory() -> Option<ByteSize> {
    procfs::Meminfo::current().ok()?.mem_available.map(ByteSize)
}
