//! Messages and receives of a message worker that go by contexts.

use qnic_abi::command::CommandBody;
use qnic_abi::context::{ContextFlags, MessageContext, CONTEXT_PAGES, REGION_BYTES};
use qnic_abi::message::{CancelCommand, CancelFlags};
use zerocopy::IntoBytes;

use super::commands::{Wrong, NO_PORT};
use super::contexts::{in_pool, pages_at};
use super::{Area, MessageWorker};
use crate::expected_bytes::Range;
use crate::message_oracle::{
    bytes_of, Message, Pattern, Receive, Space, INCOMING, OUTGOING, POOL_BYTES,
};
use crate::process::{port, Ended, Result};
use crate::schedule::{lock, trace};

/// Bytes that stand in the region of a context: those of a short message, or page descriptors.
type Region = [u8; REGION_BYTES];

impl MessageWorker<'_> {
    /// Sends a message by a context, if there is a free one: from its region, from the pool, or
    /// from pages.
    pub(super) fn send_by_context(
        &mut self,
        to: usize,
        space: Space,
        tag: u64,
        length: u64,
    ) -> Result<()> {
        let schedule = self.schedule;
        let wrong = schedule.chance(60).then(|| Wrong::ALL[schedule.below(4)]);
        let mut context = self.context_of(space, tag, length);
        let id = lock(&self.common.messages).next();
        let bytes = bytes_of(id, length);
        let (wrong, region) = match schedule.range(0..3) {
            0 if length <= REGION_BYTES as u64 => {
                let flags = context.flags.get() | ContextFlags::REGION.bits();
                context.flags = flags.into();
                let mut region = [0; REGION_BYTES];
                region[..bytes.len()].copy_from_slice(&bytes);
                (None, region)
            }
            0 | 1 if length <= POOL_BYTES => {
                let start = schedule.range(0..POOL_BYTES - length + 1);
                let range = (INCOMING + start, length);
                let mut oracle = lock(&self.common.messages);
                if !oracle.reserve(self.slot, id, range) {
                    return Ok(());
                }
                oracle.wrote(self.slot, range.0, &bytes);
                drop(oracle);
                self.contexts.store(start, &bytes);
                in_pool(&mut context, start, length);
                (None, [0; REGION_BYTES])
            }
            _ => {
                let start = schedule.range(0..OUTGOING - length + 1);
                let wrong = wrong.filter(|_| length >= 2);
                if pages_at(self.ranges[Area::Outgoing as usize].0 + start, length).is_none()
                    || !self.sources.reserve((start, length), id)
                {
                    return Ok(());
                }
                let (kernel, space) = (&self.context.machine.kernel, *self.process.space());
                let address = self.ranges[Area::Outgoing as usize].0 + start;
                if kernel.write(space, address, &bytes).is_err() {
                    return Err(Ended);
                }
                self.context.check_alive()?;
                let place = (Area::Outgoing, start, length);
                match self.list_pages(&mut context, place, wrong) {
                    Some(region) => (wrong, region),
                    None => {
                        self.sources.release(id);
                        return Ok(());
                    }
                }
            }
        };
        let wrong = wrong.filter(|wrong| *wrong != Wrong::Port);
        let nobody = wrong.is_none() && schedule.chance(15);
        let to_port = if nobody { NO_PORT } else { port(to) };
        let notify = schedule.chance(500);
        if notify {
            let flags = context.flags.get() | ContextFlags::NOTIFY.bits();
            context.flags = flags.into();
        }
        context.remote_node = (self.common.settings.slots[to] as u16).into();
        context.remote_port = to_port.into();
        context.ignore_or_immediate = id.into();
        let mut message = Message::new((self.slot, to), space, tag, length);
        let wrong = if nobody { Some(Wrong::Port) } else { wrong };
        message.wrong = wrong.map(Wrong::status);
        let Some(name) = self.contexts.take(false, id) else {
            self.sources.release(id);
            lock(&self.common.messages).release(self.slot, id);
            return Ok(());
        };
        let command = self.contexts.fill(name, &context, &region);
        self.put(&command, &[], |worker| {
            let now = schedule.now();
            message.issued = now;
            message.context = Some((name.1, notify));
            trace!(schedule, "message {id} by {name:?}: {message:?}");
            lock(&worker.common.messages).send(id, now, message);
        })?;
        self.sends += 1;
        Ok(())
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
        let mut context = self.context_of(pattern.space, pattern.tag, length);
        let mut flags = context.flags.get() | ContextFlags::NOTIFY.bits();
        if pattern.source.is_none() {
            flags |= ContextFlags::ANY_PROC.bits();
        }
        context.flags = flags.into();
        let (node, port) = pattern.source.unwrap_or_default();
        context.remote_node = node.into();
        context.remote_port = port.into();
        context.ignore_or_immediate = pattern.ignore.into();
        let in_pages = length > POOL_BYTES || schedule.chance(500);
        let (room, first) = if in_pages {
            (INCOMING, 0)
        } else {
            (POOL_BYTES, INCOMING)
        };
        let start = schedule.range(0..room - length + 1);
        let range: Range = (first + start, length);
        let mut oracle = lock(&self.common.messages);
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
        let name = region.and_then(|_| self.contexts.take(true, handle));
        let (Some(region), Some(name)) = (region, name) else {
            lock(&self.common.messages).release(self.slot, handle);
            return Ok(());
        };
        let command = self.contexts.fill(name, &context, &region);
        let mut receive = Receive::new(handle, pattern, range);
        receive.context = Some(name.1);
        receive.wrong = wrong.map(Wrong::status);
        self.issue(&command, receive, serves)
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
        let pages: [_; CONTEXT_PAGES] = pages;
        let mut region = [0; REGION_BYTES];
        region.copy_from_slice(pages.as_bytes());
        Some(region)
    }
}
