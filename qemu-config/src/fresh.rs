//! A NIC as after a boot, without booting: what used it is killed, and the driver begins anew.

use std::time::Duration;

use crate::guest_command::GuestCommand;
use crate::{Cluster, Error, Links, Node, Result};

/// Longest time for that.
const LIMIT: Duration = Duration::from_secs(60);

/// Kills the processes that have the device open, removes the driver once they are gone (fifty
/// tries, a tenth of a second each), and loads it with the parameters of the boot.
const SCRIPT: &str = r#"
for fd in /proc/[0-9]*/fd/*; do
    case $(readlink $fd) in /dev/qnic[0-9]*) ;; *) continue ;; esac
    pid=${fd#/proc/}
    kill -9 ${pid%%/*}
done
args=$(sed -n 's/.*qnic\.module_args=\([^ ]*\).*/\1/p' /proc/cmdline | tr ';' ' ')
tries=50
until message=$(rmmod qnic 2>&1); do
    tries=$((tries - 1))
    [ $tries -gt 0 ] || { echo $message >&2; exit 1; }
    usleep 100000
done
modprobe qnic $args && test -c /dev/qnic0
"#;

impl Cluster {
    /// Gives `node` NICs without processes, segments and page table entries: every process
    /// of its guest that uses one is killed. Their links do again what the cluster file says.
    ///
    /// # Errors
    /// [`Error::Guest`] says what the guest said; [`Error::Failed`] if the device process
    /// does not answer.
    pub fn renew_nic(&self, node: &Node) -> Result<()> {
        let output = node.run(&GuestCommand::shell(SCRIPT), LIMIT)?;
        if !output.exit.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let message = format!("the driver cannot begin anew: {said}");
            return Err(Error::guest(node.name(), message));
        }
        let nics = self.spec().nics();
        for nic in nics.iter().filter(|nic| nic.node.name == node.name()) {
            let network = self.spec().network_of(nic.network);
            let lossless = network.is_some_and(|it| it.lossless);
            let alone = self.spec().network_nodes(nic.network).len() == 1;
            if !lossless && !alone {
                self.restore_links(&Links::At(nic.address()))?;
            }
        }
        Ok(())
    }
}
