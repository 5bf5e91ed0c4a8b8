//! What is in the guest: programs and libraries of the distribution, busybox for
//! the rest, and the few files in this crate's folder `guest/`.

use std::path::Path;

use crate::command::{command, run};
use crate::context::Context;
use crate::distribution::STABLE;
use crate::error::{Error, Result};
use crate::guest::archive::{Node, Tree};
use crate::key::Key;
use crate::root::{PackageSet, Root, LIBRARIES, MERGED};

/// Packages with what goes into the guest, and with what unpacks its modules.
const PACKAGES: &str = "busybox-static gzip kmod libc6 libgcc-s1 pciutils qemu-guest-agent \
                        util-linux xz-utils zstd";

/// The one program without libraries. It takes the place of all programs that the guest does not
/// have.
const BUSYBOX: &str = "usr/bin/busybox";

/// Other programs that the guest has as the distribution makes them.
const PROGRAMS: [(&str, &str); 2] = [
    ("usr/bin", "chrt lscpu lspci prlimit setpci setpriv taskset"),
    ("usr/sbin", "qemu-ga zramctl"),
];

/// The loader, and libraries that programs built elsewhere may need.
const LOADER: &str = "ld-linux-x86-64.so.2";
const EXTRA_LIBRARIES: &str =
    "libc.so.6 libdl.so.2 libgcc_s.so.1 libm.so.6 libpthread.so.0 libresolv.so.2 librt.so.1";

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

/// Directories that nothing is put into here, by their permission bits.
const DIRECTORIES: [(u32, &str); 4] = [
    (0o555, "/proc /sys"),
    (0o700, "/root"),
    (
        0o755,
        "/dev /home /mnt /opt /run /usr/local/bin /usr/local/sbin /var/log",
    ),
    (0o1777, "/tmp /var/tmp"),
];

/// Links besides those of [`MERGED`].
const LINKS: [(&str, &str); 4] = [
    ("/init", "usr/bin/busybox"),
    ("/etc/mtab", "/proc/self/mounts"),
    (
        "/usr/lib64/ld-linux-x86-64.so.2",
        "../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    ),
    ("/var/run", "/run"),
];

/// The root that guests are filled from.
pub(crate) fn tools(cx: Context<'_>) -> Result<Root> {
    let set = PackageSet {
        kind: "guest",
        label: "the guest's programs",
        suite: STABLE,
        names: PACKAGES,
        keep: &|_| true,
        skip: &[],
    };
    Root::of_packages(cx, &set, |_| Ok(()))
}

/// Adds to `key` what this module decides.
pub(crate) fn add_to_key(key: &mut Key) {
    let tables = (PROGRAMS, EXTRA_LIBRARIES, DIRECTORIES, LINKS, FILES);
    key.add(format!("{tables:?}"));
}

/// The tree that every guest has, without kernel modules.
pub(crate) fn tree(tools: &Root) -> Result<Tree> {
    let mut tree = Tree::default();
    for (mode, paths) in DIRECTORIES {
        for path in paths.split_whitespace() {
            tree.put(path, Node::Directory(mode))?;
        }
    }
    for name in MERGED {
        tree.put(format!("/{name}"), Node::Link(format!("usr/{name}")))?;
    }
    for (path, target) in LINKS {
        tree.put(path, Node::Link(target.to_owned()))?;
    }
    for (path, mode, text) in FILES {
        tree.put(path, Node::Text(mode, text.into()))?;
    }
    put_copy(&mut tree, tools, "usr/share/misc/pci.ids", 0o644)?;
    put_copy(&mut tree, tools, BUSYBOX, 0o755)?;
    put_programs(&mut tree, tools)?;
    put_applets(&mut tree, tools)?;
    Ok(tree)
}

fn put_copy(tree: &mut Tree, tools: &Root, path: &str, mode: u32) -> Result<()> {
    let file = tools.dir.join(path);
    tree.put(Path::new("/").join(path), Node::Copy(mode, file))
}

/// Puts programs and libraries, with all that the loader would load for them.
fn put_programs(tree: &mut Tree, tools: &Root) -> Result<()> {
    let library = |name: &str| format!("{LIBRARIES}/{name}");
    put_copy(tree, tools, &library(LOADER), 0o755)?;
    let programs = PROGRAMS.iter().flat_map(|(dir, names)| {
        let names = names.split_whitespace();
        names.map(move |name| format!("{dir}/{name}"))
    });
    let extra = EXTRA_LIBRARIES.split_whitespace().map(library);
    for path in programs.chain(extra) {
        put_copy(tree, tools, &path, 0o755)?;
        for path in needs(tools, &path, &[])? {
            put_copy(tree, tools, &path, 0o755)?;
        }
    }
    Ok(())
}

/// Paths in the root of the libraries that the loader loads for `program`. `folders` are those
/// below [`LIBRARIES`] with some of them, which the loader would know from the path of the program
/// in the guest.
pub(super) fn needs(root: &Root, program: &str, folders: &[&str]) -> Result<Vec<String>> {
    let what = format!("list the libraries of {program}");
    let libraries = root.dir.join(LIBRARIES);
    let mut path = libraries.clone().into_os_string();
    for folder in folders {
        path.push(":");
        path.push(libraries.join(folder));
    }
    let mut list = command(root.loader());
    list.args(["--list", "--library-path"]).arg(path);
    list.arg(root.dir.join(program));
    loaded(&run(&what, &mut list)?, &root.dir)
}

/// Reads `libc.so.6 => /root/usr/lib/x86_64-linux-gnu/libc.so.6 (0x7f0000000000)`.
/// Lines without an arrow are no files; a path in front of one is the loader's.
fn loaded(list: &str, root: &Path) -> Result<Vec<String>> {
    let arrows = list
        .lines()
        .filter_map(|line| line.trim().split_once(" => "));
    arrows
        .filter(|(name, _)| !name.contains('/'))
        .map(|(name, found)| {
            let found = found.rsplit_once(" (").map_or(found, |(path, _)| path);
            let path = Path::new(found).strip_prefix(root).ok();
            let path = path.filter(|path| path.starts_with(LIBRARIES) && path.ends_with(name));
            match path.and_then(Path::to_str) {
                Some(path) => Ok(path.to_owned()),
                None => {
                    let wanted = root.join(LIBRARIES).join(name);
                    Err(Error::unexpected(format!("the library {name}"), wanted))
                }
            }
        })
        .collect()
}

/// Puts a link to busybox for each of its programs that is not there already.
fn put_applets(tree: &mut Tree, tools: &Root) -> Result<()> {
    let busybox = tools.dir.join(BUSYBOX);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_the_loaders_list_and_come_from_the_root_only() {
        let root = Path::new("/root");
        let list = "\tlinux-vdso.so.1 (0x1)\n\
                    \tlibc.so.6 => /root/usr/lib/x86_64-linux-gnu/libc.so.6 (0x2)\n\
                    \t/lib64/ld-linux-x86-64.so.2 => /root/usr/lib64/ld-linux-x86-64.so.2 (0x3)\n";
        assert_eq!(
            loaded(list, root).unwrap(),
            ["usr/lib/x86_64-linux-gnu/libc.so.6"]
        );
        let deeper = "\tliby.so.2 => /root/usr/lib/x86_64-linux-gnu/y/liby.so.2 (0x4)\n";
        assert_eq!(
            loaded(deeper, root).unwrap(),
            ["usr/lib/x86_64-linux-gnu/y/liby.so.2"]
        );
        for strange in ["libx.so => not found", "libx.so => /usr/lib/libx.so (0x1)"] {
            let error = loaded(strange, root).unwrap_err();
            assert!(error
                .to_string()
                .starts_with("the library libx.so is not where"));
        }
    }
}
