//! tshark, which reads captures: the host's own, else the distribution's.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::Cache;
use crate::command::{command, run};
use crate::distribution::STABLE;
use crate::doctor::find_program;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::root::{PackageSet, Root};

const PROGRAM: &str = "tshark";
/// What tshark reads first, beside the loader that it takes for itself.
const INIT: &str = "usr/lib/x86_64-linux-gnu/plugins/init.lua";
/// What the script prints that shows that scripts run.
const SIGN: &str = "qnic script runs";

/// How to start tshark: `env` added to the environment, `program`, `args`, then the
/// caller's own arguments. It can read files; it may not be able to capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tshark {
    /// Absolute path of what to execute.
    pub program: PathBuf,
    /// Arguments that come before any of the caller's.
    pub args: Vec<OsString>,
    /// Variables to set.
    pub env: Vec<(OsString, OsString)>,
}

impl Tshark {
    /// A command that starts it; the caller adds its arguments.
    pub fn command(&self) -> Command {
        let mut command = command(&self.program);
        command.args(&self.args);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// The tshark in the host's `PATH`, if it runs scripts in Lua: some are built
/// without, and most do not when root starts them.
pub(crate) fn host_tshark() -> Option<Tshark> {
    let tshark = Tshark {
        program: find_program(PROGRAM)?,
        args: Vec::new(),
        env: Vec::new(),
    };
    check(&tshark).ok()?;
    Some(tshark)
}

/// The distribution's tshark, from the cache or the mirror.
pub(crate) fn provision(cache: &Cache, progress: &dyn Progress) -> Result<Tshark> {
    let packages = [PROGRAM.to_owned()];
    let set = PackageSet {
        kind: PROGRAM,
        label: "tshark",
        suite: STABLE,
        packages: &packages,
        keep: &|_| true,
    };
    let root = Root::of_packages(cache, progress, &set, |dir| {
        allow_scripts(dir)?;
        // A root that does not work is never put in place.
        check(&in_root(&Root::at(dir)))
    })?;
    Ok(in_root(&root))
}

fn in_root(root: &Root) -> Tshark {
    let data = root.dir().join("usr/share/wireshark");
    Tshark {
        program: root.loader(),
        args: root.loader_args(&format!("usr/bin/{PROGRAM}"), PROGRAM),
        env: vec![("WIRESHARK_DATA_DIR".into(), data.into())],
    }
}

/// Lets root run scripts, as other users do: the caller chooses them.
fn allow_scripts(dir: &Path) -> Result<()> {
    let file = dir.join(INIT);
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
    }
    fs::write(&file, "run_user_scripts_when_superuser = true\n").map_err(Error::io("write", &file))
}

/// Runs a script.
fn check(tshark: &Tshark) -> Result<()> {
    let scratch = |source| Error::io("use", &std::env::temp_dir())(source);
    let mut script = tempfile::NamedTempFile::new().map_err(scratch)?;
    writeln!(script, "print(\"{SIGN}\")").map_err(scratch)?;
    let mut argument = OsString::from("lua_script:");
    argument.push(script.path());
    let mut ask = tshark.command();
    ask.arg("-X").arg(argument).args(["-G", "folders"]);
    match run("let tshark run a script", &mut ask)?.contains(SIGN) {
        true => Ok(()),
        false => Err(Error::UnexpectedPackage {
            what: "a tshark that runs scripts in Lua".to_owned(),
            path: tshark.program.clone(),
        }),
    }
}
