//! Nodes of the virtual cluster: a server or a client, with the buffers and queues of a driver. Each
//! call of the state machines is checked to allocate nothing.

use std::collections::HashMap;

use qnic_driver::datagram::Address;
use qnic_driver::remote_memory::{
    Arrival, Client, ClientConfig, Completion, Done, Failure, Server, ServerConfig, Ticket,
};

use crate::oracle::Oracle;
use crate::page::{Lent, Page, USED_OTHERWISE};
use crate::wire::Packet;

/// Buffers of a client's receive queue.
const CLIENT_POOL: usize = 64;
/// Buffers of a server's receive queue.
const SERVER_POOL: usize = 48;

/// Runs `f`, which must not allocate.
pub(crate) fn without_allocation<R>(f: impl FnOnce() -> R) -> R {
    let mut result = None;
    let counted = allocation_counter::measure(|| result = Some(f()));
    assert_eq!(counted.count_total, 0, "a call has allocated memory");
    result.unwrap()
}

/// A request that a client has made.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) block: u64,
    /// The content that a write brings.
    pub(crate) content: Option<u64>,
    pub(crate) submitted: u64,
    /// Steered buffer of a read, and its page.
    buffer: Option<(u64, Lent)>,
}

/// A packet for the NIC to send: its page is read later.
pub(crate) struct Sending {
    pub(crate) packet: Packet,
    pub(crate) page: Option<(Lent, Ticket)>,
}

/// A client and its user.
pub(crate) struct ClientNode {
    pub(crate) client: Client<Page>,
    pub(crate) replicas: usize,
    pub(crate) oracle: Oracle,
    pub(crate) requests: HashMap<u64, Request>,
    pub(crate) failures: Vec<Failure>,
    /// Blocks whose writes have completed.
    pub(crate) written: Vec<u64>,
    pub(crate) done: u64,
    /// Longest time that a request took.
    pub(crate) longest: u64,
    pool: Vec<Page>,
    /// Steered buffers, and those that a useless packet has taken.
    buffers: HashMap<u64, Page>,
    wasted: HashMap<u64, Page>,
    next_handle: u64,
    next_token: u64,
}

impl ClientNode {
    pub(crate) fn new(config: ClientConfig, now: u64) -> Self {
        ClientNode {
            replicas: config.replicas,
            oracle: Oracle::new(config.blocks),
            client: Client::new(config, now).unwrap(),
            requests: HashMap::new(),
            failures: Vec::new(),
            written: Vec::new(),
            done: 0,
            longest: 0,
            pool: (0..CLIENT_POOL).map(|_| Page::new(0)).collect(),
            buffers: HashMap::new(),
            wasted: HashMap::new(),
            next_handle: 1,
            next_token: 0,
        }
    }

    /// Begins a write. Returns false if it is not taken.
    pub(crate) fn write(&mut self, now: u64, block: u64, content: u64) -> bool {
        let (token, page) = (self.next_token, Page::new(content));
        let client = &mut self.client;
        let taken = without_allocation(|| client.write(now, token, block, page)).is_ok();
        if taken {
            self.note(block, Some(content), now, None);
        }
        taken
    }

    /// Begins a read. Returns false if it is not taken.
    pub(crate) fn read(&mut self, now: u64, block: u64) -> bool {
        let (token, handle) = (self.next_token, self.next_handle);
        let client = &mut self.client;
        let taken = without_allocation(|| client.read(now, token, block, handle)).is_ok();
        if taken {
            let page = Page::new(USED_OTHERWISE);
            self.next_handle += 1;
            self.note(block, None, now, Some((handle, page.lend())));
            self.buffers.insert(handle, page);
        }
        taken
    }

    fn note(&mut self, block: u64, content: Option<u64>, now: u64, buffer: Option<(u64, Lent)>) {
        let request = Request {
            block,
            content,
            submitted: now,
            buffer,
        };
        self.requests.insert(self.next_token, request);
        self.next_token += 1;
    }

    /// The NIC gives all steered buffers back, and takes them no more.
    pub(crate) fn refuse_buffers(&mut self, now: u64) {
        for (handle, page) in core::mem::take(&mut self.buffers) {
            self.wasted.insert(handle, page);
            let client = &mut self.client;
            without_allocation(|| client.target_is_back(now, handle));
        }
    }

    /// A packet arrives. Without a buffer it is dropped.
    pub(crate) fn receive(&mut self, now: u64, packet: &Packet) {
        let buffer = match packet.target {
            0 => self.pool.pop(),
            target => self.buffers.remove(&target),
        };
        let Some(page) = buffer else { return };
        let client = &mut self.client;
        let arrival = arrival(packet, page);
        let back = without_allocation(|| client.handle_message(now, arrival));
        if let Some(page) = back {
            match packet.target {
                0 => self.pool.push(page),
                target => _ = self.wasted.insert(target, page),
            }
        }
    }

    /// Takes the requests that have ended.
    pub(crate) fn collect(&mut self, now: u64) {
        loop {
            let client = &mut self.client;
            let (completion, page) =
                without_allocation(|| (client.poll_completion(), client.poll_page()));
            if completion.is_none() && page.is_none() {
                return;
            }
            self.pool.extend(page);
            completion
                .into_iter()
                .for_each(|completion| self.complete(now, completion));
        }
    }

    fn complete(&mut self, now: u64, completion: Completion<Page>) {
        let Completion {
            token,
            result,
            page,
        } = completion;
        let request = self
            .requests
            .remove(&token)
            .expect("a request that is under way");
        self.done += 1;
        self.longest = self.longest.max(now - request.submitted);
        let block = request.block;
        match (request.content, result) {
            (Some(content), Ok(_)) => {
                self.oracle.written(block, content);
                self.written.push(block);
            }
            (Some(content), Err(_)) => self.oracle.failed(block, content),
            (None, Ok(Done::Zero)) => self.oracle.read(block, 0),
            (None, Ok(_)) => {
                let content = page.as_ref().expect("the page of a read").content();
                self.oracle.read(block, content);
            }
            (None, Err(_)) => assert!(page.is_none()),
        }
        self.failures.extend(result.err());
        let Some((handle, lent)) = request.buffer else {
            // The block layer uses its page for something else at once.
            let page = page.expect("the page of a write");
            page.assert_free();
            page.fill(USED_OTHERWISE);
            return;
        };
        match page {
            Some(page) if page.is(&lent) => {}
            page => {
                self.pool.extend(page);
                let buffer = self.buffers.remove(&handle);
                let buffer = buffer.or_else(|| self.wasted.remove(&handle));
                assert!(
                    buffer.is_some_and(|page| page.is(&lent)),
                    "a buffer is lost"
                );
            }
        }
    }

    /// Checks that no request is under way and all buffers are in their places.
    pub(crate) fn assert_quiet(&self) {
        assert!(self.requests.is_empty(), "{:?}", self.requests);
        assert!(self.buffers.is_empty() && self.wasted.is_empty());
        assert_eq!(self.pool.len(), CLIENT_POOL, "a receive buffer is lost");
    }
}

/// A server.
pub(crate) struct ServerNode {
    pub(crate) server: Server<Page>,
    pool: Vec<Page>,
    pages: usize,
}

impl ServerNode {
    pub(crate) fn new(config: ServerConfig) -> Self {
        let pages = SERVER_POOL + config.pages;
        ServerNode {
            server: Server::new(config).unwrap(),
            pool: (0..pages).map(|_| Page::new(0)).collect(),
            pages,
        }
    }

    pub(crate) fn receive(&mut self, now: u64, packet: &Packet) {
        let Some(page) = self.pool.pop() else { return };
        let server = &mut self.server;
        let arrival = arrival(packet, page);
        let back = without_allocation(|| server.handle_message(now, arrival));
        back.iter().for_each(Page::assert_free);
        self.pool.extend(back);
    }

    /// Takes the pages that are free again.
    pub(crate) fn collect(&mut self) {
        while let Some(page) = without_allocation(|| self.server.poll_page()) {
            page.assert_free();
            page.fill(USED_OTHERWISE);
            self.pool.push(page);
        }
    }

    /// Checks that the NIC reads no page: each page is in the pool or in the store.
    pub(crate) fn assert_quiet(&self) {
        assert_eq!(
            self.pool.len() + self.server.pages(),
            self.pages,
            "a page is lost"
        );
    }
}

fn arrival<'a>(packet: &'a Packet, page: Page) -> Arrival<'a, Page> {
    page.fill(packet.data.unwrap_or(USED_OTHERWISE));
    Arrival {
        from: packet.from,
        header: &packet.header,
        target: packet.target,
        page,
        length: packet.data.map_or(0, |_| qnic_abi::PAGE_SIZE),
    }
}

/// The next packet that a state machine sends.
pub(crate) fn sending(
    from: Address,
    transmit: Option<qnic_driver::remote_memory::Transmit<'_, Page>>,
) -> Option<Sending> {
    let transmit = transmit?;
    assert_eq!(transmit.data.is_some(), transmit.ticket.is_some());
    let page = transmit.data.map(Page::lend).zip(transmit.ticket);
    Some(Sending {
        packet: Packet {
            from,
            to: transmit.to,
            header: transmit.header,
            target: transmit.target,
            data: None,
        },
        page,
    })
}
