//! Libraries of the distribution, for programs that are compiled against them on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{command, run};
use crate::context::Context;
use crate::distribution::STABLE;
use crate::error::{Error, Result};
use crate::root::{PackageSet, Root, LIBRARIES};

/// A library with its headers, in a directory of its own.
#[derive(Clone, Debug)]
pub struct Library {
    root: Root,
    name: &'static str,
}

/// The library that the distribution's programs for fabrics use.
const LIBFABRIC: PackageSet<'static> = PackageSet {
    kind: "libfabric-dev",
    label: "libfabric with its headers",
    suite: STABLE,
    names: "libfabric-dev",
    // The headers of the C library are the compiler's own.
    keep: &|name| name != "libc6-dev" && name != "linux-libc-dev",
    skip: &[],
};

/// The library that programs of verbs use.
const LIBIBVERBS: PackageSet<'static> = PackageSet {
    kind: "libibverbs-dev",
    label: "libibverbs and librdmacm with their headers",
    suite: STABLE,
    names: "libibverbs-dev librdmacm-dev",
    keep: LIBFABRIC.keep,
    skip: &[],
};

impl Library {
    /// libfabric.
    pub(crate) fn libfabric(cx: Context<'_>) -> Result<Self> {
        Self::of_packages(cx, &LIBFABRIC, "libfabric.so.1")
    }

    /// libibverbs.
    pub(crate) fn libibverbs(cx: Context<'_>) -> Result<Self> {
        Self::of_packages(cx, &LIBIBVERBS, "libibverbs.so.1")
    }

    fn of_packages(cx: Context<'_>, packages: &PackageSet<'_>, name: &'static str) -> Result<Self> {
        let root = Root::of_packages(cx, packages, |_| Ok(()))?;
        let library = Library { root, name };
        match library.file().is_file() {
            true => Ok(library),
            false => Err(Error::unexpected(name, library.file())),
        }
    }

    fn file(&self) -> PathBuf {
        self.root.dir.join(LIBRARIES).join(self.name)
    }

    /// Compiles `source`, one file of C, to `program` with this machine's `cc`. It runs by [`Library::command`], and in
    /// guests that have the library.
    ///
    /// # Errors
    /// [`Error::Command`] with what the compiler said.
    pub fn compile(&self, source: &Path, program: &Path) -> Result<()> {
        let mut compile = command("cc");
        compile
            .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"])
            // Behind the compiler's own headers.
            .arg("-idirafter")
            .arg(self.root.dir.join("usr/include"))
            .arg(source)
            .arg("-o")
            .arg(program)
            .arg(self.file())
            // Other libraries that it needs are not this machine's.
            .arg("-Wl,--allow-shlib-undefined");
        let what = format!("compile {} with cc", source.display());
        run(&what, &mut compile).map(drop)
    }

    /// Variables with which cargo compiles and links crates that need it, as [`Library::compile`] does programs in C.
    pub fn variables(&self) -> [(&'static str, String); 2] {
        let headers = self.root.dir.join("usr/include");
        let libraries = self.root.dir.join(LIBRARIES);
        [
            ("CFLAGS", format!("-idirafter {}", headers.display())),
            (
                "RUSTFLAGS",
                format!(
                    "-L native={} -C link-arg=-Wl,--allow-shlib-undefined",
                    libraries.display()
                ),
            ),
        ]
    }

    /// A command that runs a program which was linked with it; the caller adds arguments.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = command(self.root.loader());
        command
            .arg("--library-path")
            .arg(self.root.dir.join(LIBRARIES))
            .arg(program);
        command
    }
}
