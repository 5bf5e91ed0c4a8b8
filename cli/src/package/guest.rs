//! What is installed in a guest that has a system of its own.
//!
//! ```text
//! usr/src/qnic-VERSION/            the module's sources, which DKMS builds for each kernel of the guest
//! usr/lib/modules-load.d/          has the module loaded at boot
//! usr/bin/qnic-rmem                remote memory
//! usr/lib/, usr/include/           the library for programs in C
//! usr/lib/…/libfabric/             the provider of libfabric
//! ```

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use qnic_cluster::{APP, PROVIDER};

use super::debian::Control;
use super::host::COPYRIGHT;
use super::tree::{copy_all, copy_stripped, said, write};
use super::VERSION;

/// The static library for programs in C: its package and its name.
const LIBRARY: (&str, &str) = ("qnic-capi", "qnic_capi");
/// Shared libraries, by which the C library that the package needs is found out.
const SHARED: [&str; 2] = ["usr/lib/libqnic.so.0", LIBFABRIC];
/// Where libfabric of the distribution looks for providers.
const LIBFABRIC: &str = "usr/lib/x86_64-linux-gnu/libfabric/libqnic-fi.so";
/// How names of versions of the C library begin.
const GLIBC: &[u8] = b"GLIBC_2.";

/// Has DKMS build the module for the kernels that are there, as Debian's own packages do.
const POSTINST: &str = "\
#!/bin/sh
set -e
if [ \"$1\" = configure ]; then
    /usr/lib/dkms/common.postinst qnic @version@ /usr/share/qnic \"\" \"$2\"
fi
";

/// Takes the modules away, before their sources go.
const PRERM: &str = "\
#!/bin/sh
set -e
case $1 in
remove | upgrade | deconfigure)
    if [ -n \"$(dkms status -m qnic -v @version@)\" ]; then
        dkms remove -m qnic -v @version@ --all
    fi
    ;;
esac
";

/// Fills `root`. Returns what the package says of itself.
pub(super) fn fill(root: &Path, sources: &Path, clone: &Path) -> Result<Control> {
    let at = root.join(format!("usr/src/qnic-{VERSION}"));
    copy_all(sources, &at)?;
    write(&root.join("usr/lib/modules-load.d/qnic.conf"), "qnic\n")?;
    let app = qnic_cluster::program(APP)?;
    copy_stripped(&app, &root.join("usr/bin/qnic-rmem"))?;
    let provider = qnic_cluster::library(PROVIDER, &[], &|| {})?;
    copy_stripped(&provider, &root.join(LIBFABRIC))?;
    install_library(root, clone)?;
    write(&root.join("usr/share/doc/qnic-guest/copyright"), COPYRIGHT)?;
    Ok(control(newest_glibc(root)?))
}

/// Puts the library for programs in C where `make install` does.
fn install_library(root: &Path, clone: &Path) -> Result<()> {
    let library = qnic_cluster::library(LIBRARY, &[], &|| {})?;
    let mut install = Command::new("make");
    install.args(["--quiet", "install", "PREFIX=/usr"]);
    install.arg(format!("DESTDIR={}", root.display()));
    let library = library.with_extension("a");
    install.arg(format!("STATICLIB={}", library.display()));
    install.current_dir(clone.join("guest-lib/capi"));
    said(&mut install)?;
    for name in ["libqnic.so.0", "libqnic.a"] {
        let mut strip = Command::new("strip");
        strip.args(["--strip-unneeded", "--enable-deterministic-archives"]);
        said(strip.arg(root.join("usr/lib").join(name)))?;
    }
    Ok(())
}

/// The newest minor version of the C library that a shared library below `root` asks for.
fn newest_glibc(root: &Path) -> Result<u32> {
    let mut newest = None;
    for library in SHARED {
        let library = root.join(library);
        let bytes =
            std::fs::read(&library).with_context(|| format!("read {}", library.display()))?;
        newest = newest.max(glibc_of(&bytes));
    }
    newest.context("the libraries do not say which C library they need")
}

/// The newest minor version of the C library whose name is among `bytes`.
fn glibc_of(bytes: &[u8]) -> Option<u32> {
    let names = bytes.windows(GLIBC.len()).enumerate();
    let names = names.filter(|(_, window)| *window == GLIBC);
    let minors = names.filter_map(|(at, _)| {
        let digits = bytes[at + GLIBC.len()..]
            .iter()
            .map(|byte| char::from(*byte));
        let digits: String = digits.take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    });
    minors.max()
}

fn control(glibc: u32) -> Control {
    let script = |text: &str| text.replace("@version@", VERSION);
    Control {
        name: "qnic-guest",
        summary: "driver, library and tools of the qnic NIC, for guests",
        description: "qnic is a system-area NIC in software for QEMU guests. This package has what a guest with\n\
                      a system of its own needs: the kernel module, which DKMS builds, the library for programs\n\
                      in C with its header, a provider for libfabric, and qnic-rmem for remote memory."
            .to_owned(),
        depends: format!(
            "cargo (>= 1.85) | cargo-1.85, dkms (>= 3), gcc, libc6 (>= 2.{glibc}), libgcc-s1, make, \
             rust-src (>= 1.85) | rust-1.85-src, rustc (>= 1.85) | rustc-1.85"
        ),
        recommends: "linux-headers-cloud-amd64 | linux-headers-amd64 | linux-headers-generic",
        files: vec![
            ("postinst", 0o755, script(POSTINST)),
            ("prerm", 0o755, script(PRERM)),
            ("triggers", 0o644, "activate-noawait ldconfig\n".to_owned()),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_c_library_that_is_asked_for_counts() {
        let names = b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0GLIBC_PRIVATE\0GLIBC_2.";
        assert_eq!(glibc_of(names), Some(34));
        assert_eq!(glibc_of(b"GLIBC"), None);
        let said = control(34).depends;
        assert!(said.contains("libc6 (>= 2.34)"), "{said}");
    }

    /// dpkg-deb takes no other.
    #[test]
    fn scripts_name_the_version_and_are_of_the_shell() {
        for (name, _, text) in control(34).files {
            if name != "triggers" {
                assert!(text.starts_with("#!/bin/sh\nset -e\n"), "{text}");
                assert!(text.contains(VERSION) && !text.contains('@'), "{text}");
                let mut check = Command::new("sh");
                said(check.args(["-n", "-c", &text])).unwrap();
            }
        }
    }
}
