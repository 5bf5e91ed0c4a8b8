//! Messages that no client or server sends: old ones, and random bytes. They are dropped and counted.

use proptest::prelude::*;
use qnic_abi::remote_memory::{Attach, Header, Kind, Reason, HEADER_BYTES};
use qnic_abi::PAGE_SIZE;
use qnic_driver::datagram::Address;
use qnic_driver::remote_memory::{Arrival, Server, ServerConfig};
use zerocopy::{FromBytes, IntoBytes};

use crate::page::Page;
use crate::wire::{Packet, Quality, MS};
use crate::world::{address, World, BLOCKS, KEY};

/// A server, and clients that send bytes.
struct Bare {
    server: Server<Page>,
}

impl Bare {
    fn new() -> Self {
        let config = ServerConfig {
            incarnation: 1 << 40,
            key: KEY,
            pages: 64,
            quota: 32,
            clients: 2,
            window: 4,
            lease: 1000 * MS,
            leave_interval: MS,
        };
        Bare {
            server: Server::new(config).unwrap(),
        }
    }

    /// Sends a header, with a page or without. Returns the page that comes back.
    fn send(&mut self, from: usize, header: &[u8], content: Option<u64>) -> Option<u64> {
        let back = self.server.handle_message(
            0,
            Arrival {
                from: address(from),
                header,
                target: 0,
                page: Page::new(content.unwrap_or_default()),
                length: content.map_or(0, |_| PAGE_SIZE),
            },
        );
        back.map(|page| page.content())
    }

    /// All its messages, with the contents of their pages.
    fn said(&mut self) -> Vec<(Address, Header, u64)> {
        let mut said = Vec::new();
        while let Some(transmit) = self.server.poll_transmit(0) {
            let content = transmit.data.map_or(0, Page::content);
            let header = Header::read_from_bytes(&transmit.header).unwrap();
            said.push((transmit.to, header, content));
            if let Some(ticket) = transmit.ticket {
                self.server.handle_sent(ticket);
            }
        }
        said
    }

    fn attach(&mut self, from: usize, volume: u64) -> Header {
        let attach = Attach {
            kind: Kind::Attach as u8,
            client: 5.into(),
            volume: volume.into(),
            key: KEY.0,
            ..Attach::default()
        };
        self.send(from, attach.as_bytes(), None);
        self.said().pop().unwrap().1
    }
}

fn request(kind: Kind, session: u64, block: u64, version: u64) -> Header {
    Header {
        kind: kind as u8,
        request: 1.into(),
        session: session.into(),
        block: block.into(),
        version: version.into(),
        ..Header::default()
    }
}

/// Of two writes the newer one is kept, whichever comes last (H9).
#[test]
fn an_old_write_after_a_newer_one_changes_nothing() {
    let mut bare = Bare::new();
    let session = bare.attach(1, 7).session.get();
    let write = |version| request(Kind::Write, session, 3, version);
    assert_eq!(
        bare.send(1, write(5).as_bytes(), Some(55)),
        None,
        "kept as it is"
    );
    assert_eq!(
        bare.send(1, write(4).as_bytes(), Some(44)),
        Some(44),
        "not kept"
    );
    assert_eq!(
        bare.send(1, write(5).as_bytes(), Some(56)),
        Some(56),
        "not kept again"
    );
    let versions: Vec<_> = bare.said().iter().map(|it| it.1.version.get()).collect();
    assert_eq!(versions, [5, 5, 5], "what is kept");
    bare.send(1, request(Kind::Read, session, 3, 0).as_bytes(), None);
    let (_, page, content) = bare.said().pop().unwrap();
    assert_eq!(
        (page.kind, page.version.get(), content),
        (Kind::Page as u8, 5, 55)
    );
    assert_eq!(
        bare.send(1, write(6).as_bytes(), Some(66)),
        Some(55),
        "its successor's place"
    );
}

/// A session belongs to the node that opened it; for others there is none.
#[test]
fn a_session_of_another_client_opens_nothing() {
    let mut bare = Bare::new();
    let session = bare.attach(1, 7).session.get();
    bare.send(1, request(Kind::Write, session, 3, 1).as_bytes(), Some(1));
    bare.said();
    for (from, session) in [(2, session), (1, session + 64), (1, 0)] {
        bare.send(from, request(Kind::Read, session, 3, 0).as_bytes(), None);
        let (to, refused, _) = bare.said().pop().unwrap();
        assert_eq!((to, refused.kind), (address(from), Kind::Refused as u8));
        assert_eq!(refused.reason, Reason::NoSession as u8);
    }
    assert_eq!((bare.server.pages(), bare.server.attached()), (1, 1));
}

/// A client that sends requests without end gets its bounded number of answers; others do not wait for it.
#[test]
fn a_flood_costs_only_its_sender() {
    let mut bare = Bare::new();
    let sessions = [1, 2].map(|from| bare.attach(from, from as u64).session.get());
    for (from, session) in [1, 2].into_iter().zip(sessions) {
        bare.send(
            from,
            request(Kind::Write, session, 0, 1).as_bytes(),
            Some(9),
        );
    }
    bare.said();
    for _ in 0..100 {
        bare.send(1, request(Kind::Read, sessions[0], 0, 0).as_bytes(), None);
    }
    bare.send(2, request(Kind::Read, sessions[1], 0, 0).as_bytes(), None);
    assert_eq!(bare.server.counters().dropped, 96);
    let said = bare.said();
    assert_eq!(said.iter().filter(|it| it.0 == address(1)).count(), 4);
    assert_eq!(said.iter().filter(|it| it.0 == address(2)).count(), 1);
    for _ in 0..100 {
        bare.send(3, request(Kind::Read, 64, 0, 0).as_bytes(), None);
    }
    assert!(bare.said().len() <= 16, "strangers have little room");
}

/// There is room for a fixed number of clients; a further one is refused.
#[test]
fn there_are_only_so_many_clients() {
    let mut bare = Bare::new();
    for volume in [1, 2] {
        assert_eq!(bare.attach(1, volume).kind, Kind::Attached as u8);
    }
    let refused = bare.attach(1, 3);
    assert_eq!(refused.reason, Reason::TooManyClients as u8);
    let again = bare.attach(1, 2);
    assert_eq!(again.kind, Kind::Attached as u8, "the same once more");
    bare.server.leave(0);
    assert_eq!(bare.attach(2, 3).reason, Reason::Leaving as u8);
}

/// Headers with mostly valid fields.
fn header() -> impl Strategy<Value = [u8; HEADER_BYTES]> {
    let small = || prop_oneof![Just(0u64), 0..BLOCKS, any::<u64>()];
    let request = prop_oneof![0u32..64, (0u32..64).prop_map(|it| 4096 + it), any::<u32>()];
    (0u8..16, 0u8..9, request, small(), small(), small(), small()).prop_map(
        |(kind, reason, request, session, block, version, target)| {
            let header = Header {
                kind,
                reason,
                window: 0.into(),
                request: request.into(),
                session: session.into(),
                block: block.into(),
                version: version.into(),
                target: target.into(),
            };
            let mut bytes = [0; HEADER_BYTES];
            header.write_to(&mut bytes).unwrap();
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any headers in any session, from any sender, into any buffer: no panic, no wrong read, no
    /// lost buffer. If `knows`, the sessions are real ones.
    #[test]
    fn any_message_costs_at_most_its_request(
        seed in any::<u64>(),
        knows in any::<bool>(),
        messages in prop::collection::vec((header(), 0usize..5, 0usize..5, 0u64..40), 1..120),
    ) {
        let mut world = World::new(seed, 5, Quality::LOSSLESS);
        (0..3).for_each(|server| world.start_server(server));
        for client in [3, 4] {
            let config = world.client_config(client as u64, 2, &[0, 1, 2]);
            world.start_client(client, config);
        }
        world.pass(500 * MS);
        world.depth = 6;
        world.works_until = u64::MAX;
        for (mut header, from, to, target) in messages {
            if knows {
                header[8..16].copy_from_slice(&world.last_session.to_le_bytes());
            }
            let data = (target % 2 == 0).then_some(u64::MAX - 1);
            let target = if target < 10 { 0 } else { world.now / MS + target };
            world.send(Packet { from: address(from), to: address(to), header, target, data });
            world.pass(MS);
        }
        world.works_until = 0;
        world.pass(8000 * MS);
        for client in [3, 4] {
            world.client(client).assert_quiet();
        }
        (0..3).for_each(|server| world.server(server).assert_quiet());
    }
}
