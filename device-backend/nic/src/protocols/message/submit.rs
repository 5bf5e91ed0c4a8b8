//! Messages begin at their source: from a command, or from a context.

use qnic_abi::command::CommandHeader;
use qnic_abi::host_area::CompletionKind;
use qnic_abi::{Key, Status, VniId};

use super::command::{Name, Send};
use super::context::{Copied, Pages};
use super::sends::{Sending, Sends};
use super::{Context, Messages, Protocol};
use crate::core::{Counter, Fetched, PageKey, PerProcess, INLINE_WORDS};
use crate::env::Host;
use crate::ids::PeerIndex;

/// A message that is to be sent, whoever describes it.
struct Described {
    command: Send,
    /// How its pages are found, or why they are not.
    checked: Result<PageKey, Status>,
    pages: Option<Box<Pages>>,
    inline: [u64; INLINE_WORDS],
}

impl PerProcess<Sends> {
    /// Begins to send a message.
    pub(super) fn submit<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        command: Send,
        fetched: &Fetched,
    ) {
        let header = &fetched.descriptor.header;
        let checked = command.local.authorise(cx.core, vni);
        let message = Described {
            command,
            checked,
            pages: None,
            inline: fetched.inline.map(u64::to_le),
        };
        self.begin(cx, vni, (header, fetched.peer), message);
    }

    /// Begins to send the message of a context.
    ///
    /// # Errors
    /// Malformed: the context is under way.
    pub(super) fn submit_context<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        index: u8,
        fetched: &Fetched,
    ) -> Result<(), Status> {
        let sends = self.get_or_insert(vni);
        if sends.has_context(index) {
            return Err(Status::Malformed);
        }
        let kind = CompletionKind::Send;
        let header = &fetched.descriptor.header;
        let copied = Copied::read(cx.host, cx.core, vni, kind, (index, header));
        let (command, pages, inline) = match copied.send(index) {
            Ok(message) => message,
            Err(status) => {
                copied.refuse(cx, vni, (kind, index), status);
                return Ok(());
            }
        };
        sends.take_context(index);
        let nothing = Ok(PageKey::Table(Key(0)));
        let checked = pages
            .as_ref()
            .map_or(nothing, |pages| pages.authorise(cx.core, vni));
        let pages = pages.filter(|_| command.length > 0).map(Box::new);
        let message = Described {
            command,
            checked,
            pages,
            inline,
        };
        self.begin(cx, vni, (header, fetched.peer), message);
        Ok(())
    }

    fn begin<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        (header, peer): (&CommandHeader, Option<PeerIndex>),
        message: Described,
    ) {
        let Described {
            command,
            checked,
            pages,
            inline,
        } = message;
        let counter = Counter::Own;
        let id = (vni, Messages::ID);
        let Some(id) = cx.core.begin(id, counter, header, peer) else {
            return;
        };
        let destination = Name {
            node: header.remote_node.get(),
            port: header.remote_port.get(),
        };
        let sends = self.get_or_insert(vni);
        let page_key = checked.unwrap_or(PageKey::Table(Key(0)));
        let sending = Sending::new(command, destination, (page_key, pages), inline);
        sends.put(id, sending);
        let transport = &*cx.transport;
        let has_arrived = |peer, last| transport.is_acknowledged(peer, last);
        let failure = match (checked, peer) {
            (Err(status), _) => Some(status),
            (Ok(_), None) => Some(Status::NoSuchNode),
            (Ok(_), Some(peer)) => {
                let joined = sends.streams.join(destination, peer, id, has_arrived);
                (!joined).then_some(Status::Exhausted)
            }
        };
        match failure {
            None => sends.update(cx, id),
            Some(status) => {
                cx.core.counters.refused(status);
                sends.fail(cx, id, status);
            }
        }
    }
}
