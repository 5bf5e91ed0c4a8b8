//! The process that serves a directory of the host to a guest: virtiofsd.
//!
//! It is given the listening socket, so QEMU can connect at once; it ends when QEMU does.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::{Child, Stdio};

use qnic_images::Program;

use crate::dirs::{create_log, NodeDir};
use crate::process::MARKER;
use crate::spawn::spawn;
use crate::{Error, Result, ShareSpec};

/// Starts it for the node with the directory `dir` of the cluster in `cluster`.
///
/// virtiofsd's own sandbox needs privileges; it goes without, keeps its filter of system calls, and takes
/// names from the guest only one component at a time.
pub(crate) fn start(
    program: &Program,
    share: &ShareSpec,
    (cluster, dir): (&std::path::Path, &NodeDir),
    dies_with_us: bool,
) -> Result<Child> {
    let socket = dir.share();
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).map_err(Error::io("listen on", &socket))?;
    let log = create_log(&dir.share_log())?;
    let errors = log
        .try_clone()
        .map_err(Error::io("open", &dir.share_log()))?;
    let mut command = program.command();
    command
        .arg("--fd=0")
        .arg("--sandbox=none")
        .arg("--shared-dir")
        .arg(&share.path);
    if !share.writable {
        command.arg("--readonly");
    }
    command.env(MARKER, cluster);
    command
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .stdout(log)
        .stderr(errors);
    spawn(command, dies_with_us, 0).map_err(Error::io("start", &program.program))
}
