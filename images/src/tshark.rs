//! tshark, which reads captures: the host's own, else the distribution's. It can read
//! files; it may not be able to capture.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::Path;

use crate::cache::Cache;
use crate::command::run;
use crate::error::{Error, Result};
use crate::program::Program;
use crate::progress::Progress;
use crate::root::Root;

const PROGRAM: &str = "tshark";
/// What tshark reads first, beside the loader that it takes for itself.
const INIT: &str = "usr/lib/x86_64-linux-gnu/plugins/init.lua";
/// What the script prints that shows that scripts run.
const SIGN: &str = "qnic script runs";

/// The tshark in the host's `PATH`, if it runs scripts in Lua: some are built
/// without, and most do not when root starts them.
pub(crate) fn host_tshark() -> Option<Program> {
    Program::of_host(PROGRAM).filter(|tshark| check(tshark).is_ok())
}

/// The distribution's tshark, from the cache or the mirror.
pub(crate) fn provision(cache: &Cache, progress: &dyn Progress) -> Result<Program> {
    let root = Program::of_distribution(cache, progress, PROGRAM, |root| {
        allow_scripts(root.dir())?;
        check(&in_root(root))
    })?;
    Ok(in_root(&root))
}

fn in_root(root: &Root) -> Program {
    let data = root.dir().join("usr/share/wireshark");
    let mut tshark = Program::in_root(root, PROGRAM);
    tshark.env.push(("WIRESHARK_DATA_DIR".into(), data.into()));
    tshark
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
fn check(tshark: &Program) -> Result<()> {
    let scratch = |source| Error::io("use", &std::env::temp_dir())(source);
    let mut script = tempfile::NamedTempFile::new().map_err(scratch)?;
    writeln!(script, "print(\"{SIGN}\")").map_err(scratch)?;
    let mut argument = OsString::from("lua_script:");
    argument.push(script.path());
    let mut ask = tshark.command();
    // -G has to come first.
    ask.args(["-G", "folders", "-X"]).arg(argument);
    match run("let tshark run a script", &mut ask)?.contains(SIGN) {
        true => Ok(()),
        false => Err(Error::UnexpectedPackage {
            what: "a tshark that runs scripts in Lua".to_owned(),
            path: tshark.program.clone(),
        }),
    }
}
