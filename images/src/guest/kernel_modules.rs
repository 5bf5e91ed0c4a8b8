//! Kernel modules for the guest: which, with what they depend on, and the
//! tables from which the guest's `modprobe` knows it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{run, run_into};
use crate::error::{Error, Result};
use crate::guest::elf_file::module_info;
use crate::kernel::Kernel;
use crate::key::files_below;
use crate::root::Root;

/// Modules a guest may want, as far as the kernel has them as modules: virtio
/// devices, swap in compressed memory, PCI devices for user-space drivers.
const WANTED: [&str; 12] = [
    "virtio_console",
    "virtio_net",
    "virtio_blk",
    "virtio_rng",
    "virtio_balloon",
    "vmw_vsock_virtio_transport",
    "zram",
    "lz4_compress",
    "lz4",
    "loop",
    "vfio_pci",
    "vfio_iommu_type1",
];

/// Files that come with the kernel and that depmod reads besides the modules.
const LISTS: [&str; 3] = [
    "modules.builtin",
    "modules.builtin.modinfo",
    "modules.order",
];

/// Copies the wanted modules of `kernel`, and those they depend on, uncompressed
/// into their [`directory`] below `base`, and makes the tables there.
pub(crate) fn select(kernel: &Kernel, tools: &Root, base: &Path) -> Result<()> {
    let places: BTreeMap<String, PathBuf> = files_below(&kernel.modules, |_| false)?
        .into_iter()
        .filter_map(|path| Some((module_name(&path)?, path)))
        .collect();
    let directory = directory(base, &kernel.release);
    fs::create_dir_all(&directory).map_err(Error::io("create", &directory))?;
    let mut done = BTreeSet::new();
    let mut pending: Vec<String> = WANTED.map(str::to_owned).to_vec();
    while let Some(name) = pending.pop() {
        // What is not there as a module is built into the kernel.
        let Some(path) = places.get(&name) else {
            continue;
        };
        if done.insert(name) {
            let file = directory.join(uncompressed(path));
            uncompress(&kernel.modules.join(path), &file, tools)?;
            pending.extend(dependencies(&file)?);
        }
    }
    for list in LISTS {
        let from = kernel.modules.join(list);
        fs::copy(&from, directory.join(list)).map_err(Error::io("copy", &from))?;
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
fn dependencies(file: &Path) -> Result<Vec<String>> {
    let info = module_info(file)?;
    let depends = info.iter().filter(|(name, _)| name == "depends");
    let names = depends.flat_map(|(_, value)| value.split(','));
    Ok(names
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect())
}

/// The name of the module in a file such as `virtio-rng.ko.xz`.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let (name, rest) = file.split_once(".ko")?;
    ["", ".xz", ".zst", ".gz"]
        .contains(&rest)
        .then(|| name.replace('-', "_"))
}

/// The path of a module without the suffix of its compression.
fn uncompressed(path: &Path) -> PathBuf {
    match path.extension() {
        Some(extension) if extension != "ko" => path.with_extension(""),
        _ => path.to_owned(),
    }
}

fn uncompress(from: &Path, to: &Path, tools: &Root) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
    }
    let extension = from.extension().and_then(|e| e.to_str()).unwrap_or("");
    let program = match extension {
        "xz" => "xz",
        "zst" => "zstd",
        "gz" => "gzip",
        _ => {
            return fs::copy(from, to)
                .map(drop)
                .map_err(Error::io("read", from))
        }
    };
    let out = fs::File::create(to).map_err(Error::io("write", to))?;
    let mut command = tools.command(&format!("usr/bin/{program}"), program);
    command.arg("-dc").arg(from);
    let what = format!("uncompress {}", from.display());
    run_into(&what, &mut command, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_places_do_without_compression() {
        let path = Path::new("kernel/drivers/virtio-rng.ko.xz");
        assert_eq!(module_name(path).as_deref(), Some("virtio_rng"));
        assert_eq!(
            uncompressed(path),
            Path::new("kernel/drivers/virtio-rng.ko")
        );
        assert_eq!(uncompressed(Path::new("a/b.ko")), Path::new("a/b.ko"));
        assert_eq!(module_name(Path::new("modules.order")), None);
        assert_eq!(module_name(Path::new("x.korea")), None);
    }
}
