//! The guest image: an initial RAM file system that is the whole guest.
//!
//! ```text
//! base     programs, libraries, modules of one kernel; the same for every guest
//! overlay  qnic.ko and the caller's files
//! initrd   base and overlay, one behind the other
//! ```
//!
//! Equal inputs give equal bytes. The archives are not compressed: under emulation
//! that boots no slower than zstd or lz4, and makes them quickly.
//!
//! # What a guest offers
//!
//! | what | where |
//! |---|---|
//! | host name | `qnic.node=NAME` on the kernel command line |
//! | driver parameters | `qnic.module_args=A=1;B=2` there, separated by semicolons |
//! | readiness | one line, `ready RELEASE` or `failed REASON`, to the virtio port `org.qnic.ready` |
//! | guest agent | on the virtio port `org.qemu.guest_agent.0` |
//! | driver | `/lib/modules/RELEASE/extra/qnic.ko`, loaded before readiness; `modprobe qnic` finds it |
//! | reset | `poweroff`, `reboot`, and the agent's `guest-shutdown` |

mod archive;
mod contents;
mod kernel_modules;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err as fs;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::guest::archive::{concatenate, Node, Tree};
use crate::kernel::{self, Kernel};
use crate::kernel_series::KernelSeries;
use crate::key::{files_below, Key};
use crate::root::Root;

/// Version of the code that makes images; part of their keys.
const RECIPE: u32 = 2;
/// Where the driver goes, below `/lib/modules/<release>`.
const DRIVER: &str = "extra/qnic.ko";

/// Images that were not asked for this long are removed when another one is made.
const UNUSED_MAX: Duration = Duration::from_secs(24 * 3600);

/// What a guest boots from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestImage {
    /// The bootable kernel.
    pub vmlinuz: PathBuf,
    /// The initial RAM file system.
    pub initrd: PathBuf,
    /// Release of the kernel as `uname -r` prints it.
    pub release: String,
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
}

/// The part of an image that every guest with the same kernel has.
struct Base {
    dir: PathBuf,
}

impl Base {
    fn archive(&self) -> PathBuf {
        self.dir.join("base.cpio")
    }

    fn directories(&self) -> PathBuf {
        self.dir.join("directories")
    }

    /// Holds `lib/modules`, as it is in the archive.
    fn modules(&self) -> PathBuf {
        self.dir.join("modules")
    }
}

/// The image for the kernel of `series` with `module` and `extra` in it.
pub(crate) fn provision(
    cx: Context<'_>,
    series: KernelSeries,
    module: Option<&Path>,
    extra: &[GuestFile],
) -> Result<GuestImage> {
    let (kernel, base, tools) = base(cx, series)?;
    let initrd = if module.is_none() && extra.is_empty() {
        base.archive()
    } else {
        let key = overlay_key(&base, module, extra)?;
        let name = format!("initrd-{key}");
        let dir = cx.cache.artefact(&name, cx.progress, |dir| {
            let mut tree = Tree::default();
            // Each change of a program makes an image, and the old ones are of no use.
            cx.cache.prune_kind("initrd", UNUSED_MAX)?;
            // The tree's files are read when it is written: this outlives it.
            let scratch = tempfile::tempdir_in(dir)?;
            if let Some(module) = module {
                let indexed = index_with(&base, &kernel, &tools, module, scratch.path())?;
                tree.put_directory("/usr/lib/modules", &indexed)?;
            }
            put_extra(&mut tree, &base, extra)?;
            let overlay = scratch.path().join("overlay.cpio");
            tree.write(&overlay)?;
            concatenate(&[&base.archive(), &overlay], &dir.join("initrd.cpio"))
        })?;
        dir.join("initrd.cpio")
    };
    Ok(GuestImage {
        vmlinuz: kernel.vmlinuz,
        initrd,
        release: kernel.release,
    })
}

/// The kernel of `series`, the base image for it, and the tools that made it.
fn base(cx: Context<'_>, series: KernelSeries) -> Result<(Kernel, Base, Root)> {
    let (kernel, kernel_root) = kernel::provision(cx, series)?;
    let tools = contents::tools(cx)?;
    let mut key = Key::new("base", RECIPE);
    key.add(kernel_root.key()).add(tools.key());
    contents::add_to_key(&mut key);
    let name = format!("base-{}", key.finish());
    let dir = cx.cache.artefact(&name, cx.progress, |dir| {
        let making = format!("making the guest image for {}", kernel.release);
        cx.progress.step(&making);
        let base = Base { dir: dir.into() };
        kernel_modules::select(&kernel, &tools, &base.modules())?;
        let mut tree = contents::tree(&tools)?;
        tree.put_directory("/usr/lib/modules", &base.modules().join("lib/modules"))?;
        tree.write(&base.archive())?;
        let directories: String = tree
            .iter()
            .filter(|(_, node)| matches!(node, Node::Directory(_)))
            .map(|(path, _)| format!("{path}\n"))
            .collect();
        Ok(fs::write(base.directories(), directories)?)
    })?;
    Ok((kernel, Base { dir }, tools))
}

fn overlay_key(base: &Base, module: Option<&Path>, extra: &[GuestFile]) -> Result<String> {
    let mut key = Key::new("initrd", RECIPE);
    let base = base.dir.file_name().unwrap_or_default();
    key.add(base.as_encoded_bytes());
    if let Some(module) = module {
        key.add("module").add_file(module)?;
    }
    for file in extra {
        key.add(file.guest_path.as_os_str().as_encoded_bytes());
        key.add(file.mode.to_le_bytes()).add_file(&file.host_path)?;
    }
    Ok(key.finish())
}

/// Indexes the modules of `base` and the driver `module` together in `scratch`;
/// returns a directory with what is new: the driver and the tables.
fn index_with(
    base: &Base,
    kernel: &Kernel,
    tools: &Root,
    module: &Path,
    scratch: &Path,
) -> Result<PathBuf> {
    let old = kernel_modules::directory(&base.modules(), &kernel.release);
    let all = kernel_modules::directory(&scratch.join("all"), &kernel.release);
    let new = scratch.join("new").join(&kernel.release);
    for file in files_below(&old, |_| false)? {
        copy(&old.join(&file), &all.join(file))?;
    }
    copy(module, &all.join(DRIVER))?;
    kernel_modules::index(tools, &scratch.join("all"), &kernel.release)?;
    for file in files_below(&all, |name| name == "kernel")? {
        copy(&all.join(&file), &new.join(file))?;
    }
    Ok(scratch.join("new"))
}

/// Copies a file; missing directories are made.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    Ok(fs::copy(from, to).map(drop)?)
}

/// Puts the caller's files into `tree`.
fn put_extra(tree: &mut Tree, base: &Base, extra: &[GuestFile]) -> Result<()> {
    for file in extra {
        let node = Node::Copy(file.mode, file.host_path.clone());
        tree.put(&file.guest_path, node)?;
    }
    let directories = fs::read_to_string(base.directories())?;
    let directories: BTreeSet<&str> = directories.lines().collect();
    tree.drop_directories(|path| directories.contains(path));
    match tree.iter().find(|(path, _)| directories.contains(path)) {
        None => Ok(()),
        Some((path, _)) => Err(Error::BadGuestFile {
            path: Path::new("/").join(path),
            reason: "a directory of the guest is there",
        }),
    }
}
