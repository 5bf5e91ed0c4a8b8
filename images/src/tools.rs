//! The programs that are provisioned, as a table: where each comes from, how it is
//! arranged in a root of its own, and what shows that it is good enough.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use crate::cache::{update, Cache};
use crate::command::run;
use crate::distribution::{BACKPORTS, STABLE};
use crate::error::{Error, Result};
use crate::program::{Program, Tool};
use crate::root::{PackageSet, Root};

/// The oldest major version of QEMU with a user-creatable generic vhost-user device
/// that maps shared memory.
const QEMU_MAJOR_MIN: u32 = 11;
/// The device that a NIC is attached through.
const QEMU_DEVICE: &str = "vhost-user-test-device-pci,help";
/// Directories of `usr/share` with firmware for QEMU.
const FIRMWARE: [&str; 3] = ["qemu", "seabios", "ovmf"];
/// What tshark reads first, beside the loader that it takes for itself.
const TSHARK_INIT: &str = "usr/lib/x86_64-linux-gnu/plugins/init.lua";
/// What the script prints that shows that scripts run.
const SIGN: &str = "qnic script runs";

/// Boots the guests.
pub(crate) const QEMU: Tool = Tool {
    name: "qemu-system-x86_64",
    packages: PackageSet {
        kind: "qemu",
        label: "QEMU",
        suite: BACKPORTS,
        names: "qemu-system-x86 qemu-utils",
        keep: &|_| true,
        skip: &[],
    },
    finish: |_| Ok(()),
    adapt: adapt_qemu,
    check: check_qemu,
};

/// Reads captures; it may not be able to make them.
pub(crate) const TSHARK: Tool = Tool {
    name: "tshark",
    packages: alone("tshark"),
    finish: allow_scripts,
    adapt: |tshark, root| {
        let data = root.dir.join("usr/share/wireshark");
        tshark.env.push(("WIRESHARK_DATA_DIR".into(), data.into()));
    },
    check: check_tshark,
};

/// Serves a directory of the host to a guest. Its package has it where no `PATH` leads.
pub(crate) const VIRTIOFSD: Tool = Tool {
    name: "virtiofsd",
    packages: alone("virtiofsd"),
    finish: |root| {
        let from = root.join("usr/libexec/virtiofsd");
        Ok(fs_err::rename(from, root.join("usr/bin/virtiofsd"))?)
    },
    adapt: |_, _| {},
    check: |virtiofsd| {
        let mut ask = virtiofsd.command();
        run("ask virtiofsd for its version", ask.arg("--version")).map(drop)
    },
};

/// Makes the volumes that disk images are told by how to join.
pub(crate) const XORRISO: Tool = Tool {
    name: "xorriso",
    packages: alone("xorriso"),
    finish: |_| Ok(()),
    adapt: |_, _| {},
    check: |xorriso| {
        let mut ask = xorriso.command();
        run("ask xorriso for its version", ask.arg("-version")).map(drop)
    },
};

/// Makes the keys that disk images let in.
pub(crate) const SSH_KEYGEN: Tool = Tool {
    name: "ssh-keygen",
    packages: PackageSet {
        kind: "ssh-keygen",
        label: "ssh-keygen",
        ..alone("openssh-client")
    },
    finish: |_| Ok(()),
    adapt: |_, _| {},
    check: |ssh_keygen| {
        let mut ask = ssh_keygen.command();
        // It has no option that only tells of it; these are all keys of a file without any.
        ask.args(["-l", "-f", "/dev/null"]);
        let said = ask.output()?.stderr;
        let what = "an ssh-keygen that tells keys";
        match String::from_utf8_lossy(&said).contains("not a public key") {
            true => Ok(()),
            false => Err(Error::unexpected(what, &ssh_keygen.program)),
        }
    },
};

/// Moves the data that bandwidth is compared with.
pub(crate) const IPERF3: Tool = Tool {
    name: "iperf3",
    packages: alone("iperf3"),
    finish: |_| Ok(()),
    adapt: |_, _| {},
    check: |iperf3| {
        let mut ask = iperf3.command();
        run("ask iperf3 for its version", ask.arg("--version")).map(drop)
    },
};

/// Sends the messages that messages are compared with.
pub(crate) const FI_PINGPONG: Tool = Tool {
    name: "fi_pingpong",
    packages: alone("libfabric-bin"),
    finish: |_| Ok(()),
    adapt: |_, _| {},
    check: check_fi_pingpong,
};

/// Moves the data that transfers are compared with. It loads its transports from beside its
/// libraries.
pub(crate) const UCX_PERFTEST: Tool = Tool {
    name: "ucx_perftest",
    packages: alone("ucx-utils"),
    finish: |_| Ok(()),
    adapt: |_, _| {},
    check: check_ucx_perftest,
};

/// One package, with what it depends on.
const fn alone(name: &'static str) -> PackageSet<'static> {
    PackageSet {
        kind: name,
        label: name,
        suite: STABLE,
        names: name,
        keep: &|_| true,
        skip: &[],
    }
}

/// The version of the host's QEMU in words, or why it cannot be used.
pub(crate) fn host_qemu() -> Result<String, String> {
    let none = || "this machine has none".to_owned();
    let qemu = QEMU.of_host().ok_or_else(none)?;
    let version = qemu_version(&qemu).map_err(|_| none())?;
    let flaw = if major(&version) < QEMU_MAJOR_MIN {
        format!("is older than {QEMU_MAJOR_MIN}")
    } else if has_device(&qemu).is_err() {
        "lacks the generic vhost-user device".to_owned()
    } else {
        let path = qemu.program.display();
        return Ok(format!("{version} of this machine, {path}"));
    };
    Err(format!("this machine's {version} {flaw}"))
}

/// The version of the distribution's QEMU if it is in the cache and works.
pub(crate) fn cached_qemu(cache: &Cache) -> Option<String> {
    let root = Root::remembered(cache, &QEMU.packages)?;
    qemu_version(&QEMU.in_root(&root)).ok()
}

fn adapt_qemu(qemu: &mut Program, root: &Root) {
    for firmware in FIRMWARE {
        let dir = root.dir.join("usr/share").join(firmware);
        if dir.is_dir() {
            qemu.args.extend(["-L".into(), dir.into()]);
        }
    }
    let modules = root.dir.join("usr/lib/x86_64-linux-gnu/qemu");
    qemu.env.push(("QEMU_MODULE_DIR".into(), modules.into()));
}

fn check_qemu(qemu: &Program) -> Result<()> {
    if major(&qemu_version(qemu)?) < QEMU_MAJOR_MIN {
        let what = format!("a QEMU of version {QEMU_MAJOR_MIN} or newer");
        return Err(Error::unexpected(what, &qemu.program));
    }
    has_device(qemu)
}

fn qemu_version(qemu: &Program) -> Result<String> {
    let banner = run("ask QEMU for its version", qemu.command().arg("--version"))?;
    let version = parse_version(&banner).map(str::to_owned);
    version.ok_or_else(|| Error::unexpected("QEMU's version", &qemu.program))
}

fn has_device(qemu: &Program) -> Result<()> {
    let mut ask = qemu.command();
    ask.args(["-device", QEMU_DEVICE]);
    run("ask QEMU for its vhost-user device", &mut ask).map(drop)
}

/// Reads `QEMU emulator version 11.1.3 (Debian …)`.
fn parse_version(banner: &str) -> Option<&str> {
    let (_, rest) = banner.split_once("version ")?;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
    let version = &rest[..end.unwrap_or(rest.len())];
    (!version.is_empty()).then_some(version)
}

fn major(version: &str) -> u32 {
    let digits = version.split('.').next().unwrap_or_default();
    digits.parse().unwrap_or(0)
}

/// Lets root run scripts, as other users do: the caller chooses them.
fn allow_scripts(dir: &Path) -> Result<()> {
    let text = b"run_user_scripts_when_superuser = true\n";
    update(&dir.join(TSHARK_INIT), text).map(drop)
}

/// Runs a script in Lua: some hosts' tsharks are built without, and most refuse when
/// root starts them.
fn check_tshark(tshark: &Program) -> Result<()> {
    let mut script = tempfile::NamedTempFile::new()?;
    writeln!(script, "print(\"{SIGN}\")")?;
    let mut argument = OsString::from("lua_script:");
    argument.push(script.path());
    let mut ask = tshark.command();
    // -G has to come first.
    ask.args(["-G", "folders", "-X"]).arg(argument);
    if run("let tshark run a script", &mut ask)?.contains(SIGN) {
        return Ok(());
    }
    let what = "a tshark that runs scripts in Lua";
    Err(Error::unexpected(what, &tshark.program))
}

/// It sends tagged messages, as versions since 2 do.
fn check_fi_pingpong(fi_pingpong: &Program) -> Result<()> {
    let what = "an fi_pingpong that sends tagged messages";
    check_usage(fi_pingpong, "tagged", what)
}

/// It puts.
fn check_ucx_perftest(ucx_perftest: &Program) -> Result<()> {
    check_usage(ucx_perftest, "ucp_put_lat", "a ucx_perftest that puts")
}

/// The usage of a program names a word, whatever the exit status.
fn check_usage(program: &Program, word: &str, what: &str) -> Result<()> {
    let output = program.command().arg("-h").output()?;
    let usage = [output.stdout, output.stderr].concat();
    match String::from_utf8_lossy(&usage).contains(word) {
        true => Ok(()),
        false => Err(Error::unexpected(what, &program.program)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_banner() {
        let banner = "QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1~bpo13+1)\nCopyright";
        assert_eq!(parse_version(banner), Some("11.1.3"));
        let old = "QEMU emulator version 7.2.1-5";
        assert_eq!(parse_version(old), Some("7.2.1"));
        assert_eq!(parse_version("something else"), None);
        assert_eq!((major("11.1.3"), major("7.2"), major("x")), (11, 7, 0));
    }
}
