//! The part of the attack in which chance has no part (X18). Two queue pairs are made as a driver makes them, and
//! exchange a message without bytes. Then their rings are filled with nonsense, and the NIC lets both fail. Each
//! step is waited for: a NIC that refuses everything does not come to the end of it.

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use qnic_abi::attach::CONTROL_QUEUE;
use qnic_abi::client::CommandQueue;
use qnic_abi::command::CommandBody;
use qnic_abi::control::{Opcode, ReplyHeader, REPLY_BYTES};
use qnic_abi::header::Geometry;
use qnic_abi::verbs::commands::VerbsSendCommand;
use qnic_abi::verbs::requests::{QueryQueuePair, QueuePairInfo};
use qnic_abi::verbs::rings::{ReceiveEntry, SendEntry, SendFlags};
use qnic_abi::verbs::{Outcome, Request, State};
use qnic_abi::{Status, VniId};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::verbs::{CONNECTS, FIRST_PAIR, MARK, SHAPES};
use super::{Attack, Start, MESSAGES, USED, VNIS};

/// A step that has not ended by then hangs.
const HANGS: Duration = Duration::from_secs(300);

/// Processes with the queue pairs, which are connected with each other.
const PAIRS: [u16; 2] = [0, 1];

/// Rings of a process.
const SENDS: usize = 1;
const RECEIVES: usize = 2;

impl Attack {
    pub(in super::super) fn in_order(&mut self) -> Result<()> {
        self.start_and_wait()?;
        for vni in PAIRS {
            self.connect(vni)?;
        }
        self.exchange().context("a message without bytes")?;
        self.done.pairs_connected += PAIRS.len() as u64;
        for (vni, behind) in PAIRS.into_iter().zip([None, Some(u32::MAX)]) {
            self.fill_with_nonsense(vni, behind)?;
            self.done.pairs_failed += 1;
        }
        self.device.reset();
        self.done.resets += 1;
        Ok(())
    }

    /// Starts the device as a driver does. Its windows are as good as new.
    pub(super) fn start_and_wait(&mut self) -> Result<Geometry> {
        self.start(Start::Right);
        self.wait_for("the SRAM", |attack| {
            attack.look_for_sram()?;
            Ok(attack.geometry.is_some())
        })?;
        let geometry = self.geometry.context("no SRAM")?;
        for vni in 0..VNIS {
            let window = geometry.window_offset(VniId(vni));
            CommandQueue::at(window, 0).clear(&self.device.sram);
        }
        Ok(geometry)
    }

    fn connect(&mut self, vni: u16) -> Result<()> {
        let made = [&self.joins(vni)[..], &self.objects(vni, false)[..]].concat();
        for (opcode, body) in made {
            self.ask(opcode, vni, &body)?;
        }
        for state in CONNECTS {
            let change = self.change(vni, state);
            self.ask(Opcode::ModifyQueuePair, vni, change.as_bytes())?;
        }
        Ok(())
    }

    fn exchange(&mut self) -> Result<()> {
        let [from, to] = PAIRS;
        let mut receive = ReceiveEntry::new_zeroed();
        receive.id = MARK.into();
        self.put(to, RECEIVES, receive.as_bytes(), None);
        let mut send = SendEntry::new_zeroed();
        (send.id, send.opcode) = (MARK.into(), (Request::Send as u32).into());
        send.flags = SendFlags::SIGNALED.bits().into();
        self.put(from, SENDS, send.as_bytes(), None);
        self.says_that_work_waits(from)?;
        for vni in PAIRS {
            self.wait_for("a completion", |attack| {
                Ok(attack.completion(vni, 0).id.get() == MARK)
            })?;
            let status = self.completion(vni, 0).status.get();
            let right = status == Outcome::Success as u32;
            ensure!(
                right,
                "queue pair of VNI {vni}: its work ended with {status}"
            );
        }
        Ok(())
    }

    /// All entries of the send queue are nonsense, and its index is the next one, or none of the ring.
    fn fill_with_nonsense(&mut self, vni: u16, behind: Option<u32>) -> Result<()> {
        let (entries, bytes) = SHAPES[SENDS];
        let nonsense = vec![0xff; bytes.into()];
        for entry in 1..entries {
            let last = entry + 1 == entries;
            self.put(vni, SENDS, &nonsense, behind.filter(|_| last));
        }
        self.says_that_work_waits(vni)?;
        let mut query = QueryQueuePair::new_zeroed();
        query.qp = (FIRST_PAIR + u32::from(vni)).into();
        self.wait_for("a queue pair to fail", |attack| {
            let reply = attack.ask(Opcode::QueryQueuePair, vni, query.as_bytes())?;
            let (info, _) = QueuePairInfo::read_from_prefix(&reply)
                .ok()
                .context("no state")?;
            Ok(info.state == State::Failed as u8)
        })
    }

    fn says_that_work_waits(&mut self, vni: u16) -> Result<()> {
        let geometry = self.geometry.context("no SRAM")?;
        let mut send = VerbsSendCommand::command();
        send.header.remote_node = geometry.node.0.into();
        send.qp = (FIRST_PAIR + u32::from(vni)).into();
        let window = geometry.window_offset(VniId(vni));
        self.tell(vni, window, &[send.descriptor()]);
        Ok(())
    }

    /// Sends a request that is right, and waits for its reply. Returns what stands behind its header.
    pub(super) fn ask(&mut self, opcode: Opcode, vni: u16, body: &[u8]) -> Result<Vec<u8>> {
        let at = self.send_numbered(opcode as u32, vni, body);
        self.wait_for("a reply", |attack| {
            let used = attack.arena.read(CONTROL_QUEUE, USED + 2);
            Ok(u16::from_le_bytes(used) == attack.available[CONTROL_QUEUE])
        })?;
        let reply: [u8; REPLY_BYTES] = self.arena.read(MESSAGES, at);
        let (header, body) = ReplyHeader::read_from_prefix(&reply)
            .ok()
            .context("no reply")?;
        let status = header.status.get();
        let granted = status == Status::Ok.code();
        ensure!(
            granted,
            "{opcode:?} of VNI {vni} was refused: status {status}"
        );
        Ok(body.to_vec())
    }

    pub(super) fn wait_for(
        &mut self,
        what: &str,
        mut there: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let limit = Instant::now() + HANGS;
        while !there(self)? {
            ensure!(Instant::now() < limit, "waited in vain for {what}");
            std::thread::yield_now();
        }
        Ok(())
    }
}
