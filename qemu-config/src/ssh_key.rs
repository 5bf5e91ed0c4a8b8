//! The key pair of a cluster with disk images: guests let its holder in by SSH. It goes with the cluster.

use std::fs;
use std::path::Path;

use qnic_images::Program;

use crate::{Error, Result};

/// Makes the pair: the private key as `file`, which its owner alone may read, the public one beside it.
/// Returns the public one, as a line of `authorized_keys`.
pub(crate) fn make(ssh_keygen: &Program, file: &Path) -> Result<String> {
    let mut command = ssh_keygen.command();
    command.args(["-q", "-t", "ed25519", "-N", "", "-C", "qnic", "-f"]);
    let output = command.arg(file).output();
    let output = output.map_err(Error::io("start", &ssh_keygen.program))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let message = format!("ssh-keygen cannot make {}: {}", file.display(), said.trim());
        return Err(Error::Host(message));
    }
    let public = file.with_extension("pub");
    fs::read_to_string(&public).map_err(Error::io("read", &public))
}
