//! Kernel modules for the guest: which, with what they depend on, and the
//! tables from which the guest's `modprobe` knows it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::command::run;
use crate::context::Context;
use crate::error::Result;
use crate::guest::uncompress::{uncompress, uncompressor};
use crate::kernel::Kernel;
use crate::key::{files_below, Key};
use crate::module;
use crate::root::Root;

/// Version of the code that selects modules; part of their keys.
const RECIPE: u32 = 1;
/// Where the driver goes, below `/lib/modules/<release>`.
const DRIVER: &str = "extra/qnic.ko";
/// Where the device of libibverbs goes, which stands on it.
const VERBS: &str = "extra/qnic_ib.ko";

/// Modules a guest may want, as far as the kernel has them as modules: virtio
/// devices, swap in compressed memory, PCI devices for user-space drivers, the power button, the device that
/// tells QEMU of a panic, the one that has files for the guest, what remote memory and writes
/// are compared with: nbd, Soft-RoCE and the checksum that it asks for by name; what the device of libibverbs
/// stands on; and the connection manager that stands on that.
const WANTED: &str = "virtio_console virtio_net virtio_blk virtio_rng virtio_balloon \
                      vmw_vsock_virtio_transport zram lz4_compress lz4 loop vfio_pci \
                      vfio_iommu_type1 button pvpanic_pci qemu_fw_cfg nbd rdma_rxe crc32_generic \
                      ib_uverbs rdma_ucm";

/// Files that come with the kernel and that depmod reads besides the modules.
const LISTS: [&str; 3] = [
    "modules.builtin",
    "modules.builtin.modinfo",
    "modules.order",
];

/// Adds to `key` what this module decides.
pub(crate) fn add_to_key(key: &mut Key) {
    key.add(WANTED).add(LISTS.concat());
}

/// A directory with the wanted modules of `kernel`, and those they depend on,
/// uncompressed.
pub(crate) fn provision(
    cx: Context<'_>,
    kernel: &Kernel,
    kernel_root: &Root,
    tools: &Root,
) -> Result<PathBuf> {
    let mut key = Key::new("modules", RECIPE);
    key.add(kernel_root.key()).add(tools.key());
    add_to_key(&mut key);
    let name = format!("modules-{}", key.finish());
    cx.cache
        .artefact(&name, cx.progress, |dir| select(kernel, tools, dir))
}

fn select(kernel: &Kernel, tools: &Root, dir: &Path) -> Result<()> {
    let paths: BTreeMap<String, PathBuf> = files_below(&kernel.modules, |_| false)?
        .into_iter()
        .filter_map(|path| Some((module_name(&path)?, path)))
        .collect();
    let mut done = BTreeSet::new();
    let mut pending: Vec<_> = WANTED.split_whitespace().map(str::to_owned).collect();
    while let Some(name) = pending.pop() {
        // What is not there as a module is built into the kernel.
        let Some(path) = paths.get(&name) else {
            continue;
        };
        if done.insert(name) {
            let file = copy_uncompressed(&kernel.modules, path, dir, tools)?;
            pending.extend(dependencies(&file, tools)?);
        }
    }
    LISTS
        .iter()
        .try_for_each(|list| copy(&kernel.modules.join(list), &dir.join(list)))
}

/// Puts `modules` of the kernel `release` and the `driver`, with what is beside it, below `base`, with the tables
/// from which `modprobe` knows them; returns the directory of all releases.
pub(crate) fn index(
    modules: &Path,
    driver: Option<&Path>,
    tools: &Root,
    base: &Path,
    release: &str,
) -> Result<PathBuf> {
    let all = base.join("lib/modules");
    for file in files_below(modules, |_| false)? {
        copy(&modules.join(&file), &all.join(release).join(file))?;
    }
    if let Some(driver) = driver {
        copy(driver, &all.join(release).join(DRIVER))?;
        copy(&module::verbs(driver), &all.join(release).join(VERBS))?;
    }
    let mut depmod = tools.command("usr/bin/kmod", "depmod");
    depmod.arg("--basedir").arg(base).arg(release);
    run("make the tables of the kernel modules", &mut depmod)?;
    Ok(all)
}

/// Copies a file; missing directories are made.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    Ok(fs::copy(from, to).map(drop)?)
}

/// Names of the modules that the module in `file` depends on.
fn dependencies(file: &Path, tools: &Root) -> Result<Vec<String>> {
    let mut modinfo = tools.command("usr/bin/kmod", "modinfo");
    modinfo.args(["-F", "depends"]).arg(file);
    let depends = run("ask a kernel module what it depends on", &mut modinfo)?;
    let names = depends.trim().split(',').filter(|name| !name.is_empty());
    Ok(names.map(|name| name.replace('-', "_")).collect())
}

/// The name of the module in a file such as `virtio-rng.ko.xz`.
fn module_name(path: &Path) -> Option<String> {
    let (name, suffix) = path.file_name()?.to_str()?.split_once(".ko")?;
    (suffix.is_empty() || uncompressor(suffix).is_some()).then(|| name.replace('-', "_"))
}

/// Copies the file `path` of `from` to the same path of `to`, without compression and
/// its suffix; returns where it is then.
fn copy_uncompressed(from: &Path, path: &Path, to: &Path, tools: &Root) -> Result<PathBuf> {
    let (from, to) = (from.join(path), to.join(path));
    copy(&from, &to)?;
    uncompress(to, tools)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_without_compression() {
        for (file, name) in [
            ("kernel/drivers/virtio-rng.ko.xz", Some("virtio_rng")),
            ("a/b.ko", Some("b")),
            ("modules.order", None),
            ("x.korea", None),
        ] {
            assert_eq!(module_name(Path::new(file)).as_deref(), name, "{file}");
        }
    }
}
