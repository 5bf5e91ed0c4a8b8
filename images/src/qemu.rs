//! QEMU: the host's own if it is good enough, else the distribution's.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::cache::Cache;
use crate::command::{command, run};
use crate::distribution::BACKPORTS;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::root::{PackageSet, Root};

/// The oldest major version with a user-creatable generic vhost-user device that
/// maps shared memory.
pub(crate) const MAJOR_MIN: u32 = 11;
/// The device that a NIC is attached through.
const DEVICE: &str = "vhost-user-test-device-pci";
const PROGRAM: &str = "qemu-system-x86_64";
const PACKAGES: [&str; 2] = ["qemu-system-x86", "qemu-utils"];

/// How to start QEMU: `env` added to the environment, `program`, `args`, then
/// the caller's own arguments.
///
/// `-name NAME,process=TITLE` among the caller's arguments gives the process a
/// telling name; without it, a provisioned QEMU shows up as its dynamic loader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    /// Absolute path of what to execute.
    pub program: PathBuf,
    /// Arguments that come before any of the caller's.
    pub args: Vec<OsString>,
    /// Variables to set.
    pub env: Vec<(OsString, OsString)>,
    /// Version, such as `11.1.3`.
    pub version: String,
}

impl Qemu {
    /// A command that starts this QEMU; the caller adds its arguments.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// What is known of the host's own QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostQemu {
    Absent,
    TooOld(String),
    NoDevice(String),
    Good(Qemu),
}

/// Looks at the QEMU in the host's `PATH`.
pub(crate) fn host_qemu() -> HostQemu {
    let Some(program) = crate::doctor::find_program(PROGRAM) else {
        return HostQemu::Absent;
    };
    let mut qemu = Qemu {
        program,
        args: Vec::new(),
        env: Vec::new(),
        version: String::new(),
    };
    match version_of(&qemu) {
        Ok(version) => qemu.version = version,
        Err(_) => return HostQemu::Absent,
    }
    if major(&qemu.version) < MAJOR_MIN {
        HostQemu::TooOld(qemu.version)
    } else if has_device(&qemu).is_err() {
        HostQemu::NoDevice(qemu.version)
    } else {
        HostQemu::Good(qemu)
    }
}

/// The distribution's QEMU, from the cache or the mirror.
pub(crate) fn provision(cache: &Cache, progress: &dyn Progress) -> Result<Qemu> {
    let packages = PACKAGES.map(str::to_owned);
    let root = Root::of_packages(cache, progress, &set(&packages), |dir| {
        // A root that cannot start is never put in place.
        has_device(&in_root(&Root::at(dir))?)
    })?;
    in_root(&root)
}

/// The distribution's QEMU if it is in the cache and works.
pub(crate) fn cached(cache: &Cache) -> Option<Qemu> {
    let packages = PACKAGES.map(str::to_owned);
    in_root(&Root::remembered(cache, &set(&packages))?).ok()
}

fn set(packages: &[String]) -> PackageSet<'_> {
    PackageSet {
        kind: "qemu",
        label: "QEMU",
        suite: BACKPORTS,
        packages,
        keep: &|_| true,
    }
}

fn in_root(root: &Root) -> Result<Qemu> {
    let mut args = root.loader_args(&format!("usr/bin/{PROGRAM}"), PROGRAM);
    for firmware in ["qemu", "seabios", "ovmf"] {
        let dir = root.dir().join("usr/share").join(firmware);
        if dir.is_dir() {
            args.extend(["-L".into(), dir.into()]);
        }
    }
    let modules = root.dir().join("usr/lib/x86_64-linux-gnu/qemu");
    let mut qemu = Qemu {
        program: root.loader(),
        args,
        env: vec![("QEMU_MODULE_DIR".into(), modules.into())],
        version: String::new(),
    };
    qemu.version = version_of(&qemu)?;
    Ok(qemu)
}

/// Runs QEMU for what it says of itself.
fn ask(qemu: &Qemu, what: &str, arguments: &[&str]) -> Result<String> {
    let mut ask = command(&qemu.program);
    ask.args(&qemu.args).args(arguments);
    ask.envs(qemu.env.iter().map(|(name, value)| (name, value)));
    run(what, &mut ask)
}

fn version_of(qemu: &Qemu) -> Result<String> {
    let banner = ask(qemu, "ask QEMU for its version", &["--version"])?;
    parse_version(&banner).ok_or_else(|| Error::UnexpectedPackage {
        what: "QEMU's version".to_owned(),
        path: qemu.program.clone(),
    })
}

fn has_device(qemu: &Qemu) -> Result<()> {
    let device = format!("{DEVICE},help");
    ask(
        qemu,
        "ask QEMU for its vhost-user device",
        &["-device", &device],
    )
    .map(drop)
}

/// Reads `QEMU emulator version 11.1.3 (Debian …)`.
fn parse_version(banner: &str) -> Option<String> {
    let rest = banner.split_once("version ")?.1;
    let version = rest
        .split(|c: char| !c.is_ascii_digit() && c != '.')
        .next()?;
    (!version.is_empty()).then(|| version.to_owned())
}

fn major(version: &str) -> u32 {
    let digits = version.split('.').next().unwrap_or_default();
    digits.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_banner() {
        let banner = "QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1~bpo13+1)\nCopyright";
        assert_eq!(parse_version(banner).as_deref(), Some("11.1.3"));
        assert_eq!(
            parse_version("QEMU emulator version 7.2.1-5").as_deref(),
            Some("7.2.1")
        );
        assert_eq!(parse_version("something else"), None);
        assert_eq!((major("11.1.3"), major("7.2"), major("x")), (11, 7, 0));
    }
}
