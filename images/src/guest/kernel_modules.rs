//! Kernel modules for the guest: which, with what they depend on, and the
//! tables from which the guest's `modprobe` knows it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::cache::remove_file;
use crate::command::run;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::key::files_below;
use crate::root::Root;

/// Modules a guest may want, as far as the kernel has them as modules: virtio
/// devices, swap in compressed memory, PCI devices for user-space drivers.
const WANTED: &str = "virtio_console virtio_net virtio_blk virtio_rng virtio_balloon \
                      vmw_vsock_virtio_transport zram lz4_compress lz4 loop vfio_pci \
                      vfio_iommu_type1";

/// Files that come with the kernel and that depmod reads besides the modules.
const LISTS: [&str; 3] = [
    "modules.builtin",
    "modules.builtin.modinfo",
    "modules.order",
];

/// Copies the wanted modules of `kernel`, and those they depend on, uncompressed
/// into their [`directory`] below `base`, and makes the tables there.
pub(crate) fn select(kernel: &Kernel, tools: &Root, base: &Path) -> Result<()> {
    let paths: BTreeMap<String, PathBuf> = files_below(&kernel.modules, |_| false)?
        .into_iter()
        .filter_map(|path| Some((module_name(&path)?, path)))
        .collect();
    let directory = directory(base, &kernel.release);
    fs::create_dir_all(&directory)?;
    let mut done = BTreeSet::new();
    let mut pending: Vec<_> = WANTED.split_whitespace().map(str::to_owned).collect();
    while let Some(name) = pending.pop() {
        // What is not there as a module is built into the kernel.
        let Some(path) = paths.get(&name) else {
            continue;
        };
        if done.insert(name) {
            let file = copy_uncompressed(&kernel.modules, path, &directory, tools)?;
            pending.extend(dependencies(&file, tools)?);
        }
    }
    for list in LISTS {
        fs::copy(kernel.modules.join(list), directory.join(list))?;
    }
    index(tools, base, &kernel.release)
}

/// Makes the tables from which `modprobe` knows the modules of `release` below `base`.
pub(crate) fn index(tools: &Root, base: &Path, release: &str) -> Result<()> {
    let mut depmod = tools.command("usr/bin/kmod", "depmod");
    depmod.arg("--basedir").arg(base).arg(release);
    run("make the tables of the kernel modules", &mut depmod).map(drop)
}

/// Where the modules of `release` are below `base`.
pub(crate) fn directory(base: &Path, release: &str) -> PathBuf {
    base.join("lib/modules").join(release)
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

/// The program that uncompresses files with this suffix.
fn uncompressor(suffix: &str) -> Option<&'static str> {
    match suffix {
        ".xz" => Some("xz"),
        ".zst" => Some("zstd"),
        ".gz" => Some("gzip"),
        _ => None,
    }
}

/// Copies the file `path` of `from` to the same path of `to`, without compression and
/// its suffix; returns where it is then.
fn copy_uncompressed(from: &Path, path: &Path, to: &Path, tools: &Root) -> Result<PathBuf> {
    let (from, to) = (from.join(path), to.join(path));
    fs::create_dir_all(to.parent().unwrap_or(&to))?;
    fs::copy(&from, &to)?;
    let suffix = to.extension().unwrap_or_default().to_string_lossy();
    let Some(program) = uncompressor(&format!(".{suffix}")) else {
        return Ok(to);
    };
    let mut command = tools.command(&format!("usr/bin/{program}"), program);
    let what = format!("uncompress {}", from.display());
    run(&what, command.arg("-d").arg(&to))?;
    // Some of these programs leave it.
    remove_file(&to)?;
    Ok(to.with_extension(""))
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
