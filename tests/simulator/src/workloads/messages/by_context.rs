//! Messages and receives of a message worker that go by contexts.

use qnic_abi::command::CommandBody;
use qnic_abi::context::{ContextFlags, MessageContext, REGION_BYTES};
use qnic_abi::message::{CancelCommand, CancelFlags};
use zerocopy::IntoBytes;

use super::commands::{Wrong, NO_PORT};
use super::contexts::{in_pool, pages_at, pool_starts};
use super::oracle::{bytes_of, Message, Pattern, Receive, Space, INCOMING, OUTGOING, POOL_BYTES};
use super::{Area, MessageWorker};
use crate::expected_bytes::Range;
use crate::process::Result;
use crate::schedule::{lock, trace};
use crate::settings::port;

/// Bytes that stand in the region of a context: those of a short message, or page descriptors.
type Region = [u8; REGION_BYTES];

impl MessageWorker<'_> {
    /// Sends a message by a context, if there is a free one.
    pub(super) fn send_by_context(
        &mut self,
        to: usize,
        space: Space,
        tag: u64,
        length: u64,
    ) -> Result<()> {
        let schedule = self.schedule;
        if self.contexts.are_held(false) {
            return Ok(());
        }
        let wrong = schedule.chance(60).then(|| Wrong::ALL[schedule.below(4)]);
        let mut context = self.context_of(space, tag, length);
        let id = lock(&self.workload.oracle).next();
        let Some((region, wrong)) = self.describe(&mut context, id, length, wrong)? else {
            return Ok(());
        };
        let notify = schedule.chance(500);
        let mut flags = ContextFlags::from_bits_retain(context.flags.get());
        flags.set(ContextFlags::NOTIFY, notify);
        context.flags = flags.bits().into();
        context.remote_node = (self.common.settings.slots[to] as u16).into();
        let nobody = wrong == Some(Wrong::Port);
        context.remote_port = if nobody { NO_PORT } else { port(to) }.into();
        context.ignore_or_immediate = id.into();
        context.mark = (id as u32).into();
        let named = self.named(to, id);
        context.incarnation = named.into();
        let name = self.contexts.take(false, id);
        let command = self.contexts.fill(name, &context, &region);
        let mut message = Message::new((self.slot, to), space, tag, length);
        message.wrong = wrong.map(Wrong::status);
        message.named = named;
        message.context = Some((name.1, notify));
        self.put(&command, &[], |worker| {
            let now = schedule.now();
            message.issued = now;
            trace!(schedule, "message {id} by {name:?}: {message:?}");
            lock(&worker.workload.oracle).send(id, now, message);
        })?;
        self.sends += 1;
        Ok(())
    }

    /// Puts the bytes of a message where a context says that they are: in its region, in the pool,
    /// or in pages. Returns the region, and what is wrong; `None` if there is no room.
    fn describe(
        &mut self,
        context: &mut MessageContext,
        id: u64,
        length: u64,
        wrong: Option<Wrong>,
    ) -> Result<Option<(Region, Option<Wrong>)>> {
        let (schedule, bytes) = (self.schedule, bytes_of(id, length));
        let elsewhere = wrong.filter(|wrong| *wrong == Wrong::Port);
        let mut region = [0; REGION_BYTES];
        match schedule.range(0..3) {
            0 if length <= REGION_BYTES as u64 => {
                let flags = context.flags.get() | ContextFlags::REGION.bits();
                context.flags = flags.into();
                region[..bytes.len()].copy_from_slice(&bytes);
                Ok(Some((region, elsewhere)))
            }
            0 | 1 if length <= POOL_BYTES => {
                let start = schedule.range(pool_starts(length));
                let mut oracle = lock(&self.workload.oracle);
                if !oracle.reserve(self.slot, id, (INCOMING + start, length)) {
                    return Ok(None);
                }
                oracle.wrote(self.slot, INCOMING + start, &bytes);
                self.contexts.store(start, &bytes);
                in_pool(context, start, length);
                Ok(Some((region, elsewhere)))
            }
            _ => {
                let start = schedule.range(0..OUTGOING - length + 1);
                let wrong = if length >= 2 { wrong } else { elsewhere };
                let place = (Area::Outgoing, start, length);
                let Some(region) = self.list_pages(context, place, wrong) else {
                    return Ok(None);
                };
                if !self.sources.reserve((start, length), id) {
                    return Ok(None);
                }
                self.write_source(start, &bytes)?;
                Ok(Some((region, wrong)))
            }
        }
    }

    /// Posts a receive by a context, if there is a free one: into the pool, or into pages.
    pub(super) fn receive_by_context(
        &mut self,
        pattern: Pattern,
        length: u64,
        wrong: Option<Wrong>,
        serves: Option<Space>,
    ) -> Result<()> {
        let schedule = self.schedule;
        if self.contexts.are_held(true) {
            return Ok(());
        }
        let mut context = self.context_of(pattern.space, pattern.tag, length);
        let mut flags = context.flags.get() | ContextFlags::NOTIFY.bits();
        if pattern.source.is_none() {
            flags |= ContextFlags::ANY_PROC.bits();
        }
        context.flags = flags.into();
        let (node, port) = pattern.source.unwrap_or_default();
        context.remote_node = node.into();
        context.remote_port = port.into();
        context.incarnation = pattern.incarnation.into();
        context.ignore_or_immediate = pattern.ignore.into();
        let in_pages = length > POOL_BYTES || schedule.chance(500);
        let (starts, first) = match in_pages {
            true => (0..INCOMING - length + 1, 0),
            false => (pool_starts(length), INCOMING),
        };
        let start = schedule.range(starts);
        let range: Range = (first + start, length);
        let mut oracle = lock(&self.workload.oracle);
        let handle = oracle.next();
        if !oracle.reserve(self.slot, handle, range) {
            return Ok(());
        }
        drop(oracle);
        let wrong = wrong.filter(|_| in_pages);
        let region = match in_pages {
            true => self.list_pages(&mut context, (Area::Incoming, start, length), wrong),
            false => {
                in_pool(&mut context, start, length);
                Some([0; REGION_BYTES])
            }
        };
        let Some(region) = region else {
            lock(&self.workload.oracle).release(self.slot, handle);
            return Ok(());
        };
        let name = self.contexts.take(true, handle);
        let command = self.contexts.fill(name, &context, &region);
        let mut receive = Receive::new(handle, pattern, range);
        receive.context = Some(name.1);
        receive.wrong = wrong.map(Wrong::status);
        self.issue((&command, &[]), receive, serves)
    }

    /// The command that takes the receive of a context back.
    pub(super) fn cancel_of_context(number: usize) -> CancelCommand {
        let mut command = CancelCommand::command();
        command.handle = (number as u64).into();
        command.flags = CancelFlags::CONTEXT.bits().into();
        command
    }

    fn context_of(&self, space: Space, tag: u64, length: u64) -> MessageContext {
        let flags = match space.1 {
            true => ContextFlags::UNTAGGED,
            false => ContextFlags::empty(),
        };
        MessageContext {
            flags: flags.bits().into(),
            tag: tag.into(),
            length: length.into(),
            endpoint: space.0.into(),
            ..MessageContext::default()
        }
    }

    /// Names memory in an area, perhaps wrongly; `None` if it is not exported, or in too many
    /// pages.
    fn list_pages(
        &self,
        context: &mut MessageContext,
        (area, start, length): (Area, u64, u64),
        wrong: Option<Wrong>,
    ) -> Option<Region> {
        let (address, key, segment) = self.local(area, start, wrong)?;
        let (count, pages) = pages_at(address, length)?;
        context.pages = count.into();
        if length > 0 {
            context.local_key = key.into();
            context.local_segment = segment.into();
        }
        let mut region = [0; REGION_BYTES];
        region.copy_from_slice(pages.as_bytes());
        Some(region)
    }
}
