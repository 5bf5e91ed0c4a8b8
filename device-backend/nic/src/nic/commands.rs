//! From command queues to operations: the core reads commands, the protocol of each
//! opcode checks it and begins its operation.

use qnic_abi::NodeId;

use crate::core::Fetched;
use crate::env::{Host, Wire};
use crate::protocols;

use super::{Io, Nic};

impl Nic {
    /// Reads commands of all active queues; those that had none for long enough are idle then.
    #[inline(always)]
    pub(super) fn fetch_commands<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &Io<'_, H, W>,
    ) -> bool {
        let (now, host) = (io.now, io.host);
        let mut busy = false;
        let mut idle = false;
        let mut index = 0;
        self.core.activate_rung(now);
        while let Some(vni) = self.core.active_queue(index) {
            index += 1;
            let limit = self.core.limits.commands_per_poll.max(1);
            for _ in 0..limit {
                let Some(first) = self.core.next_command(host, vni) else {
                    idle |= self.core.is_idle(now, vni);
                    break;
                };
                busy = true;
                let mut command = Fetched::default();
                let fetched = self.core.fetch(now, host, vni, first, &mut command);
                if let Ok(sampled) = fetched {
                    if sampled {
                        let kind = protocols::kind_of_opcode(command.descriptor.header.opcode);
                        self.core
                            .sample(host, vni, kind, protocols::describe(&command));
                    }
                    let node = NodeId(command.descriptor.header.remote_node.get());
                    command.peer = self.transport.reach(io.wire, node);
                }
                let (protocols, mut cx) = self.parts(now, host);
                let submitted = fetched.and_then(|_| protocols.submit(&mut cx, vni, &command));
                if let Err(status) = submitted {
                    self.core.fail_queue(host, vni, status);
                }
            }
        }
        if idle {
            busy |= self.core.rest_queues(now, host);
        }
        self.resume_unblocked(now, host);
        busy
    }
}
