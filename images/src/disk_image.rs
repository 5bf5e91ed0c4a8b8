//! A disk image of the distribution's packages alone, with its own kernel, boot loader, systemd, cloud-init and
//! SSH server; and what DKMS makes of a source package in the root of that image.
//!
//! ```text
//! packages ─▶ root, unpacked ─▶ configured, in a chroot ─▶ disk.raw: MBR, GRUB, ext4
//!                                   │
//!        compilers, headers, dkms ──┴──▶ layers of one root ─▶ dkms install ─▶ qnic.ko
//! ```
//!
//! Nothing of this runs under emulation, or as root.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err as fs;

use crate::build_root;
use crate::cache::remove_tree;
use crate::context::Context;
use crate::distribution::STABLE;
use crate::error::{Error, Result};
use crate::kernel;
use crate::kernel_series::KernelSeries;
use crate::key::{files_below, Key};
use crate::root::{PackageSet, Root};
use crate::sandbox::{run_in_layers, run_in_root, Layers};
use crate::system_root::{self, name_of, unpack, ESSENTIAL, INSTALL};

/// Version of the code that makes images, and modules for them; part of their keys.
const RECIPE: u32 = 1;

/// What makes it a guest; the last three make the image.
const GUEST: &str = "cloud-init dbus initramfs-tools iproute2 iputils-ping kmod openssh-server \
                     systemd-sysv udev zstd fakeroot fdisk grub-pc-bin";

/// Size of the image, of which most is a hole.
const SIZE_MIB: u32 = 900;

/// Name of the image in its artefact, and of the root that it was made from.
const DISK: &str = "disk.raw";
const ROOT: &str = "root";

/// Images and modules that were not asked for this long are removed when another one is made.
const UNUSED_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

const MAKE: &str = include_str!("../disk/make");
const DKMS: &str = include_str!("../disk/dkms");

/// The image, from the cache or the mirror.
pub(crate) fn provision(cx: Context<'_>) -> Result<PathBuf> {
    Ok(artefact(cx)?.join(DISK))
}

fn artefact(cx: Context<'_>) -> Result<PathBuf> {
    let release = kernel::release(cx, KernelSeries::Stable)?;
    let names = format!("{ESSENTIAL} {GUEST} {}{release}", kernel::IMAGE);
    let packages = system_root::packages(cx, "a disk image", &names)?;
    let mut key = Key::new("disk", RECIPE);
    key.add(name_of(&packages));
    key.add(INSTALL).add(MAKE).add(SIZE_MIB.to_le_bytes());
    let name = format!("disk-{}", key.finish());
    cx.cache.artefact(&name, cx.progress, |dir| {
        cx.cache.prune("disk", UNUSED_MAX)?;
        let root = dir.join(ROOT);
        cx.progress.step("unpacking the packages of the disk image");
        unpack(&packages, &root)?;
        // The script is where the image goes, too.
        fs::write(dir.join("make"), format!("{INSTALL}{MAKE}"))?;
        let script = format!(
            "export KERNEL={release} SIZE_MIB={SIZE_MIB}; exec fakeroot-sysv sh /media/make"
        );
        let mounts = [(&*packages, "/mnt"), (dir, "/media")];
        run_in_root("make a disk image", &root, &mounts, &script, cx.progress)?;
        Ok(fs::remove_file(dir.join("make"))?)
    })
}

/// The module that DKMS builds from the source package in `package` for the kernel of the image, in a root of
/// the image with the compilers and headers of the distribution.
pub(crate) fn module(cx: Context<'_>, package: &Path) -> Result<PathBuf> {
    let release = kernel::release(cx, KernelSeries::Stable)?;
    let image = artefact(cx)?;
    let compilers = build_root::provision(cx)?;
    let tools = dkms(cx)?;
    let mut key = Key::new("dkms", RECIPE);
    key.add(name_of(&image));
    key.add(compilers.key()).add(tools.key()).add(DKMS);
    key.add_files(package, &files_below(package, |_| false)?)?;
    let name = format!("dkms-{}", key.finish());
    let dir = cx.cache.artefact(&name, cx.progress, |dir| {
        cx.cache.prune("dkms", UNUSED_MAX)?;
        cx.progress
            .step(&format!("building the module by DKMS for {release}"));
        let scratch = dir.join("scratch");
        let layers = Layers {
            lower: &[&image.join(ROOT), &tools.dir, &compilers.dir],
            scratch: &scratch,
        };
        let out = dir.join("module");
        fs::create_dir(&out)?;
        let mounts = [(package, "/mnt"), (&*out, "/media")];
        let script = format!("export KERNEL={release}\n{DKMS}");
        run_in_layers(
            "build a DKMS package",
            &layers,
            &mounts,
            &script,
            cx.progress,
        )?;
        remove_tree(&scratch)
    })?;
    let is_module = |path: &PathBuf| path.to_string_lossy().contains("qnic.ko");
    let out = dir.join("module");
    let files = files_below(&out, |_| false)?;
    let module = files.into_iter().find(is_module);
    let module = module.ok_or_else(|| Error::unexpected("the module that DKMS has built", &out))?;
    Ok(out.join(module))
}

/// Runs `script` in the root of the image with compilers, headers and DKMS. It sees the directory `dir` as `/mnt`; what
/// it writes elsewhere is gone when it ends, and lines that it prints are steps.
pub(crate) fn run(cx: Context<'_>, dir: &Path, script: &str) -> Result<()> {
    let image = artefact(cx)?;
    let compilers = build_root::provision(cx)?;
    let tools = dkms(cx)?;
    let scratch = tempfile::tempdir()?;
    let layers = Layers {
        lower: &[&image.join(ROOT), &tools.dir, &compilers.dir],
        scratch: scratch.path(),
    };
    let what = "use a package in a root with compilers";
    let done = run_in_layers(what, &layers, &[(dir, "/mnt")], script, cx.progress);
    // The kernel makes this directory for itself, and lets no user look into it.
    let of_kernel = scratch.path().join("work/work");
    let _ = fs::set_permissions(of_kernel, Permissions::from_mode(0o700));
    done
}

/// DKMS, and what it runs besides what the other layers have.
fn dkms(cx: Context<'_>) -> Result<Root> {
    let set = PackageSet {
        kind: "dkms-tools",
        label: "DKMS",
        suite: STABLE,
        names: "dkms patch xz-utils",
        keep: &|name| ["dkms", "patch", "xz-utils"].contains(&name),
        skip: &[],
    };
    Root::of_packages(cx, &set, |_| Ok(()))
}
