//! The guest image: an initial RAM file system that is the whole guest.
//!
//! ```text
//! vmlinux  the kernel, uncompressed: under emulation, a guest takes long for that
//! modules  of one kernel, as far as a guest may want them, uncompressed
//! initrd   programs, libraries, modules, qnic.ko and the caller's files
//! ```
//!
//! Equal inputs give equal bytes. The archive is not compressed: under emulation
//! that boots no slower than zstd or lz4, and makes it quickly.
//!
//! # What a guest offers
//!
//! | what | where |
//! |---|---|
//! | host name | `qnic.node=NAME` on the kernel command line |
//! | driver parameters | `qnic.module_args=A=1;B=2` there, separated by semicolons |
//! | Ethernet | `qnic.eth=ADDRESS/LENGTH` there, and `qnic.mtu=BYTES`: virtio-net in PCI slot 0x18 becomes `eth0`; lines of `/etc/hosts` are the file `opt/org.qnic/hosts` of fw_cfg |
//! | a directory of the host | `qnic.share=PATH` there: the virtiofs device with the tag `share`, mounted at the path |
//! | readiness | one line, `ready RELEASE` or `failed REASON`, to the virtio port `org.qnic.ready` |
//! | guest agent | on the virtio port `org.qemu.guest_agent.0` |
//! | driver | `/lib/modules/RELEASE/extra/qnic.ko`, loaded before readiness; `modprobe qnic` finds it |
//! | device of libibverbs | `qnic_ib.ko` beside it, loaded if there are programs for it; `modprobe qnic_ib` finds it |
//! | reset | `poweroff`, `reboot`, and the agent's `guest-shutdown` |

mod archive;
mod contents;
mod extra;
mod kernel_modules;
mod uncompress;
mod uncompressed_kernel;

pub(crate) use extra::{Programs, EXT4, FIO, MPI, MPI_TESTS, NETWORK, UCX, VERBS};

use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err::File;

use crate::context::Context;
use crate::error::Result;
use crate::guest::archive::Node;
use crate::kernel::{self, Kernel};
use crate::kernel_series::KernelSeries;
use crate::key::Key;
use crate::module;
use crate::root::Root;

/// Version of the code that makes images; part of their keys.
const RECIPE: u32 = 4;

/// Images that were not asked for this long are removed when another one is made.
const UNUSED_MAX: Duration = Duration::from_secs(24 * 3600);

/// What a guest boots from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestImage {
    /// The bootable kernel.
    pub vmlinuz: PathBuf,
    /// The same, uncompressed, if QEMU can start it: under emulation it boots faster.
    pub vmlinux: Option<PathBuf>,
    /// The initial RAM file system.
    pub initrd: PathBuf,
}

/// A file of the host to put into a guest image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestFile {
    /// Absolute path in the guest; missing directories are made (0755).
    pub guest_path: PathBuf,
    /// Where its content is.
    pub host_path: PathBuf,
    /// Permission bits, such as `0o755`.
    pub mode: u32,
    /// Other absolute paths in the guest, which become symbolic links to it.
    pub links: Vec<PathBuf>,
}

/// What an image is made of besides the driver and the caller's files.
pub(crate) struct Parts {
    kernel: Kernel,
    kernel_root: Root,
    tools: Root,
    modules: PathBuf,
    vmlinux: Option<PathBuf>,
}

/// The parts of images for the kernel of `series`, from the cache or the mirror.
pub(crate) fn parts(cx: Context<'_>, series: KernelSeries) -> Result<Parts> {
    let (kernel, kernel_root) = kernel::provision(cx, series)?;
    let tools = contents::tools(cx)?;
    let modules = kernel_modules::provision(cx, &kernel, &kernel_root, &tools)?;
    let vmlinux = uncompressed_kernel::provision(cx, &kernel, &kernel_root, &tools)?;
    Ok(Parts {
        kernel,
        kernel_root,
        tools,
        modules,
        vmlinux,
    })
}

/// The image for the kernel of `series` with `module` and `extra` in it.
pub(crate) fn provision(
    cx: Context<'_>,
    series: KernelSeries,
    module: Option<&Path>,
    extra: &[GuestFile],
) -> Result<GuestImage> {
    let Parts {
        kernel,
        kernel_root,
        tools,
        modules,
        vmlinux,
    } = parts(cx, series)?;
    let key = key(&kernel_root, &tools, module, extra)?;
    let dir = cx
        .cache
        .artefact(&format!("initrd-{key}"), cx.progress, |dir| {
            // Each change of a program makes an image, and earlier ones have no use.
            cx.cache.prune("initrd", UNUSED_MAX)?;
            let making = format!("making the guest image for {}", kernel.release);
            cx.progress.step(&making);
            // This outlives the tree, whose files are read when it is written.
            let scratch = tempfile::tempdir_in(dir)?;
            let release = &kernel.release;
            let indexed = kernel_modules::index(&modules, module, &tools, scratch.path(), release)?;
            let mut tree = contents::tree(&tools)?;
            tree.put_directory("/usr/lib/modules", &indexed)?;
            for file in extra {
                let node = Node::Copy(file.mode, file.host_path.clone());
                tree.put(&file.guest_path, node)?;
                for link in &file.links {
                    let node = Node::Link(file.guest_path.display().to_string());
                    tree.put(link, node)?;
                }
            }
            let file = File::create(dir.join("initrd.cpio"))?;
            tree.write(BufWriter::with_capacity(1 << 20, file))
        })?;
    Ok(GuestImage {
        vmlinuz: kernel.vmlinuz,
        vmlinux,
        initrd: dir.join("initrd.cpio"),
    })
}

fn key(kernel: &Root, tools: &Root, driver: Option<&Path>, extra: &[GuestFile]) -> Result<String> {
    let mut key = Key::new("initrd", RECIPE);
    key.add(kernel.key()).add(tools.key());
    kernel_modules::add_to_key(&mut key);
    contents::add_to_key(&mut key);
    if let Some(driver) = driver {
        key.add("module").add_file(driver)?;
        key.add_file(&module::verbs(driver))?;
    }
    for file in extra {
        key.add(file.guest_path.as_os_str().as_encoded_bytes());
        key.add(file.mode.to_le_bytes()).add_file(&file.host_path)?;
        for link in &file.links {
            key.add("link").add(link.as_os_str().as_encoded_bytes());
        }
    }
    Ok(key.finish())
}
