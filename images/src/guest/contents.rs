//! What is in the guest: programs and libraries of the distribution, busybox for
//! the rest, and the few files in this crate's folder `guest/`.

use std::collections::BTreeSet;
use std::path::Path;

use crate::cache::Cache;
use crate::command::{command, run};
use crate::distribution::STABLE;
use crate::error::Result;
use crate::guest::archive::{Node, Tree};
use crate::guest::elf_file::needs;
use crate::key::Key;
use crate::progress::Progress;
use crate::root::{PackageSet, Root};

/// Packages with what goes into the guest, and with what unpacks its modules.
const PACKAGES: [&str; 10] = [
    "busybox-static",
    "gzip",
    "kmod",
    "libc6",
    "libgcc-s1",
    "pciutils",
    "qemu-guest-agent",
    "util-linux",
    "xz-utils",
    "zstd",
];

/// Programs that the guest has as the distribution makes them.
const PROGRAMS: [&str; 9] = [
    "usr/bin/busybox",
    "usr/bin/chrt",
    "usr/bin/lscpu",
    "usr/bin/lspci",
    "usr/bin/prlimit",
    "usr/bin/setpci",
    "usr/bin/taskset",
    "usr/sbin/qemu-ga",
    "usr/sbin/zramctl",
];

/// Libraries that programs built elsewhere may need.
const LIBRARIES: [&str; 7] = [
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "libresolv.so.2",
    "librt.so.1",
];

const LIBRARY_DIR: &str = "usr/lib/x86_64-linux-gnu";
const LOADER: &str = "ld-linux-x86-64.so.2";

/// Files of this crate: path in the guest, permission bits, content.
const FILES: [(&str, u32, &str); 7] = [
    ("/etc/inittab", 0o644, include_str!("../../guest/inittab")),
    ("/etc/passwd", 0o644, include_str!("../../guest/passwd")),
    ("/etc/group", 0o644, include_str!("../../guest/group")),
    ("/etc/hosts", 0o644, "127.0.0.1 localhost\n"),
    (
        "/usr/lib/qnic/boot",
        0o755,
        include_str!("../../guest/boot"),
    ),
    (
        "/usr/lib/qnic/announce",
        0o755,
        include_str!("../../guest/announce"),
    ),
    (
        "/usr/sbin/shutdown",
        0o755,
        include_str!("../../guest/shutdown"),
    ),
];

/// Directories that nothing is put into here.
const DIRECTORIES: [(&str, u32); 13] = [
    ("/dev", 0o755),
    ("/home", 0o755),
    ("/mnt", 0o755),
    ("/opt", 0o755),
    ("/proc", 0o555),
    ("/root", 0o700),
    ("/run", 0o755),
    ("/sys", 0o555),
    ("/tmp", 0o1777),
    ("/usr/local/bin", 0o755),
    ("/usr/local/sbin", 0o755),
    ("/var/log", 0o755),
    ("/var/tmp", 0o1777),
];

const LINKS: [(&str, &str); 8] = [
    ("/bin", "usr/bin"),
    ("/init", "usr/bin/busybox"),
    ("/lib", "usr/lib"),
    ("/lib64", "usr/lib64"),
    ("/sbin", "usr/sbin"),
    ("/etc/mtab", "/proc/self/mounts"),
    (
        "/usr/lib64/ld-linux-x86-64.so.2",
        "../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    ),
    ("/var/run", "/run"),
];

/// The root that guests are filled from.
pub(crate) fn tools(cache: &Cache, progress: &dyn Progress) -> Result<Root> {
    let packages = PACKAGES.map(str::to_owned);
    let set = PackageSet {
        kind: "guest",
        label: "the guest's programs",
        suite: STABLE,
        packages: &packages,
        keep: &|_| true,
    };
    Root::of_packages(cache, progress, &set, |_| Ok(()))
}

/// Adds to `key` what this module decides.
pub(crate) fn add_to_key(key: &mut Key) {
    for (path, mode, text) in FILES {
        key.add(path).add(mode.to_le_bytes()).add(text);
    }
}

/// The tree of the base image, without kernel modules.
pub(crate) fn tree(tools: &Root) -> Result<Tree> {
    let mut tree = Tree::default();
    for (path, mode) in DIRECTORIES {
        tree.put(path, Node::Directory(mode))?;
    }
    for (path, target) in LINKS {
        tree.put(path, Node::Link(target.to_owned()))?;
    }
    for (path, mode, text) in FILES {
        tree.put(path, Node::Text(mode, text.into()))?;
    }
    for program in PROGRAMS {
        put_copy(&mut tree, tools, program, 0o755)?;
    }
    put_copy(&mut tree, tools, "usr/share/misc/pci.ids", 0o644)?;
    put_libraries(&mut tree, tools)?;
    put_applets(&mut tree, tools)?;
    Ok(tree)
}

fn put_copy(tree: &mut Tree, tools: &Root, path: &str, mode: u32) -> Result<()> {
    let file = tools.dir().join(path);
    tree.put(Path::new("/").join(path), Node::Copy(mode, file))
}

/// Puts the libraries of all programs and what those need in turn.
fn put_libraries(tree: &mut Tree, tools: &Root) -> Result<()> {
    let mut pending: Vec<String> = LIBRARIES.map(str::to_owned).to_vec();
    for program in PROGRAMS {
        pending.extend(needs(&tools.dir().join(program))?);
    }
    pending.push(LOADER.to_owned());
    let mut done = BTreeSet::new();
    while let Some(library) = pending.pop() {
        let path = format!("{LIBRARY_DIR}/{library}");
        if done.insert(library) {
            pending.extend(needs(&tools.dir().join(&path))?);
            put_copy(tree, tools, &path, 0o755)?;
        }
    }
    Ok(())
}

/// Puts a link to busybox for each of its programs that is not there already.
fn put_applets(tree: &mut Tree, tools: &Root) -> Result<()> {
    let busybox = tools.dir().join("usr/bin/busybox");
    let what = "ask busybox for its programs";
    let list = run(what, command(&busybox).arg("--list-full"))?;
    for applet in list.lines() {
        let path = format!("usr/{}", applet.trim_start_matches("usr/"));
        let is_program = path.starts_with("usr/bin/") || path.starts_with("usr/sbin/");
        let elsewhere = ["bin", "sbin"].iter().any(|dir| {
            let name = path.rsplit('/').next().unwrap_or_default();
            tree.contains(&format!("usr/{dir}/{name}"))
        });
        if is_program && !elsewhere {
            let target = Node::Link("/usr/bin/busybox".to_owned());
            tree.put(Path::new("/").join(path), target)?;
        }
    }
    Ok(())
}
