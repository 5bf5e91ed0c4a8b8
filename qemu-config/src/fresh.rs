//! A NIC as after a boot, without booting: what used it is killed, and the driver begins anew.

use std::time::Duration;

use crate::guest_command::GuestCommand;
use crate::{Cluster, Error, Links, Node, NodeSpec, Result};

/// Longest time for that.
const LIMIT: Duration = Duration::from_secs(60);

/// Kills the processes that have one of the files open that `$1` matches, fifty times at most, a tenth of a
/// second each, until `$2` succeeds.
const RELEASE: &str = r#"
release() {
    tries=50
    while
        for fd in /proc/[0-9]*/fd/*; do
            case $(readlink $fd) in $1) ;; *) continue ;; esac
            pid=${fd#/proc/}
            kill -9 ${pid%%/*}
        done
        ! message=$($2 2>&1)
    do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || { echo $message >&2; exit 1; }
        usleep 100000
    done
}
"#;

/// Removes the driver once no process uses it, and loads it with the parameters of the boot.
const MODULE: &str = r#"
removed() { ! test -d /sys/module/qnic || rmmod qnic; }
args=$(sed -n 's/.*qnic\.module_args=\([^ ]*\).*/\1/p' /proc/cmdline | tr ';' ' ')
release '/dev/qnic[0-9]*' removed
modprobe qnic $args && test -c /dev/qnic0
"#;

/// Has no process drive a device by VFIO: the next one finds a NIC that was reset.
const VFIO: &str = r#"
unused() {
    for fd in /proc/[0-9]*/fd/*; do
        case $(readlink $fd) in /dev/vfio/*) echo "process ${fd%%/fd/*} does not end"; return 1 ;; esac
    done
}
release '/dev/vfio/*' unused
"#;

/// The script of a node's guest; `None` if it has no NIC.
fn script(node: &NodeSpec) -> Option<String> {
    let driver = match node.is_on_vfio() {
        true => VFIO,
        false => MODULE,
    };
    node.nic.then(|| format!("{RELEASE}{driver}"))
}

impl Cluster {
    /// Gives `node` NICs without processes, segments and page table entries: every process
    /// of its guest that uses one is killed, by the module or by VFIO. Their links do again what the
    /// cluster file says. Nothing is done on a node without a NIC.
    ///
    /// # Errors
    /// [`Error::NoGuest`]; [`Error::Guest`] says what the guest said; [`Error::Failed`] if the device process
    /// does not answer.
    pub fn renew_nic(&self, node: &Node) -> Result<()> {
        node.check_guest()?;
        let Some(script) = script(node.spec()) else {
            return Ok(());
        };
        let output = node.run(&GuestCommand::shell(&script), LIMIT)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NicDriver;

    /// In a cluster with nodes of all kinds, each is done what its driver needs.
    #[test]
    fn only_nodes_with_the_module_load_it_anew() {
        let module = NodeSpec::new("a");
        let vfio = NodeSpec {
            driver: NicDriver::Vfio,
            ..NodeSpec::new("b")
        };
        let plain = NodeSpec {
            nic: false,
            ..NodeSpec::new("c")
        };
        let scripts = [module, vfio, plain].map(|node| script(&node));
        let loads = |script: &str| script.contains("rmmod qnic") && script.contains("modprobe");
        let loads = scripts
            .each_ref()
            .map(|script| script.as_deref().map(loads));
        assert_eq!(loads, [Some(true), Some(false), None]);
        assert!(scripts[1].as_ref().unwrap().contains("/dev/vfio/*"));
    }
}
