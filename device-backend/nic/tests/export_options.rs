//! What an exporter permits beside access (N2): which processes may import a segment, and which
//! notifications its writers may signal (N11, N16).

use qnic_abi::export::{ExportOptions, Importer, LISTED};
use qnic_abi::{Access, Secret, Status};
use qnic_nic::testing::{LossyWire, Net, Pair, Party, SimSegment, ALL, PAGE};
use qnic_nic::Limits;

const NAME: u64 = 99;
const SECRET: Secret = Secret([0x5e; 16]);
const NONE: Secret = Secret([0; 16]);

/// Where the segments of these tests lie.
const RANGE: (u64, u64) = (0x9000_0000, 8 * PAGE);

fn open() -> ExportOptions {
    ExportOptions::open()
}

fn secretive() -> ExportOptions {
    ExportOptions {
        secret: SECRET,
        ..open()
    }
}

/// Options that list processes, each by node and port.
fn listing(importers: &[(u16, u16)]) -> ExportOptions {
    let mut options = open();
    options.flags = LISTED.into();
    options.count = (importers.len() as u32).into();
    for (entry, (node, port)) in options.importers.iter_mut().zip(importers) {
        *entry = Importer {
            node: (*node).into(),
            port: (*port).into(),
        };
    }
    options
}

fn signalling(first: u32, last: u32) -> ExportOptions {
    ExportOptions {
        first_notification: first.into(),
        last_notification: last.into(),
        ..open()
    }
}

fn export(party: &Party, options: ExportOptions) -> SimSegment {
    let exported = party.export_to(1, NAME, RANGE, ALL, options);
    exported.expect("a segment")
}

/// What an import of the segment of `exporter` brings at once.
fn import(importer: &Party, exporter: &Party, secret: Secret) -> Result<u64, Status> {
    let (node, port) = (exporter.node as u16, exporter.port);
    let token = importer.import_with(secret, node, port, NAME, 0)?;
    importer.net.run();
    let reply = importer.net.import_reply(importer.node, token);
    reply.expect("a reply")
}

const REFUSED: Result<u64, Status> = Err(Status::ImportRefused);

/// Three nodes, with two processes on the first.
fn four() -> [Party; 4] {
    let net = Net::new(3, 512, 8, &Limits::default());
    [(0, 1), (0, 2), (1, 3), (2, 4)].map(|(node, vni)| net.party(node, vni))
}

#[test]
fn a_segment_with_a_secret_is_imported_with_it_only() {
    let [exporter, neighbour, other, _] = four();
    let segment = export(&exporter, secretive());
    for importer in [&neighbour, &other] {
        let mut nearly = SECRET;
        nearly.0[15] ^= 1;
        for wrong in [NONE, nearly, Secret([0xff; 16])] {
            assert_eq!(import(importer, &exporter, wrong), REFUSED);
        }
        assert_eq!(import(importer, &exporter, SECRET), Ok(segment.key));
    }
    // It set the secret itself.
    assert_eq!(import(&exporter, &exporter, NONE), Ok(segment.key));
    assert_eq!(exporter.net.counters(0).errors_access, 6);
}

#[test]
fn a_listed_process_may_import_and_others_may_not() {
    let [exporter, neighbour, other, third] = four();
    for (list, allowed) in [
        (&[][..], [false; 3]),
        (&[(0, neighbour.port.0)], [true, false, false]),
        (&[(1, 0)], [false, true, false]),
        // The port of one process on the node of another.
        (&[(1, third.port.0), (2, other.port.0)], [false; 3]),
        (&[(2, 0), (0, neighbour.port.0)], [true, false, true]),
    ] {
        let segment = export(&exporter, listing(list));
        let got = [&neighbour, &other, &third].map(|from| import(from, &exporter, NONE));
        let wanted = allowed.map(|allowed| if allowed { Ok(segment.key) } else { REFUSED });
        assert_eq!(got, wanted, "{list:?}");
        assert_eq!(import(&exporter, &exporter, NONE), Ok(segment.key));
        exporter.unexport(segment);
    }
}

#[test]
fn a_secret_and_a_list_have_both_to_be_met() {
    let [exporter, neighbour, other, _] = four();
    let options = ExportOptions {
        secret: SECRET,
        ..listing(&[(1, other.port.0)])
    };
    let segment = export(&exporter, options);
    assert_eq!(import(&other, &exporter, NONE), REFUSED);
    assert_eq!(import(&neighbour, &exporter, SECRET), REFUSED);
    assert_eq!(import(&other, &exporter, SECRET), Ok(segment.key));
}

/// An import that came before its name was exported gets no more than one that comes after.
#[test]
fn an_import_that_waits_is_checked_when_the_name_appears() {
    let [exporter, neighbour, other, _] = four();
    let wait = |party: &Party, secret| {
        let token = party.import_with(secret, 0, exporter.port, NAME, 60_000);
        party.net.run();
        token.unwrap()
    };
    let waiting = [(&neighbour, NONE), (&other, NONE), (&other, SECRET)];
    let tokens = waiting.map(|(party, secret)| (party.node, wait(party, secret)));
    let segment = export(&exporter, secretive());
    exporter.net.run();
    let got = tokens.map(|(node, token)| exporter.net.import_reply(node, token));
    assert_eq!(got, [Some(REFUSED), Some(REFUSED), Some(Ok(segment.key))]);
    assert_eq!(exporter.net.counters(0).parked_imports, 0);
}

/// Permissions are those of one export: what comes after it under the same name, or on the same port,
/// has its own.
#[test]
fn permissions_end_with_their_segment_and_their_process() {
    let [mut exporter, _, other, _] = four();
    let segment = export(&exporter, open());
    assert_eq!(import(&other, &exporter, NONE), Ok(segment.key));
    assert_eq!(exporter.unexport(segment), Status::Ok);
    export(&exporter, secretive());
    assert_eq!(import(&other, &exporter, NONE), REFUSED);
    let (net, port) = (exporter.net.clone(), exporter.port);
    exporter.end();
    assert_eq!(import(&other, &exporter, SECRET), Err(Status::NameNotFound));
    exporter = Party::register(&net, 0, exporter.vni, port, 0).unwrap();
    let segment = export(&exporter, open());
    assert_eq!(import(&other, &exporter, NONE), Ok(segment.key));
}

#[test]
fn options_that_contradict_themselves_are_refused() {
    let [exporter, ..] = four();
    let mut uncounted = open();
    uncounted.importers[0].node = 1.into();
    let mut beyond = listing(&[]);
    beyond.count = 33.into();
    let mut unknown = open();
    unknown.flags = 2.into();
    for options in [uncounted, beyond, unknown] {
        let refused = exporter.export_to(1, NAME, RANGE, ALL, options);
        assert_eq!(refused.map(drop), Err(Status::Malformed));
    }
    export(&exporter, open());
}

/// Writes of all forms that notify: each with a number that the segment does not allow, and the
/// one that it does. `a` writes, `b` exports.
fn writers_signal_what_they_may(pair: &Pair, absent: bool) {
    let (a, b) = (&pair.a, &pair.b);
    let segment = b.export_to(1, NAME, RANGE, Access::WRITE, signalling(5, 6));
    let segment = segment.unwrap();
    let memory = |party: &Party| {
        let mut bytes = vec![0; RANGE.1 as usize];
        let mut cluster = party.net.cluster();
        let node = &mut cluster.nodes[party.node];
        node.driver.read(&node.host, party.vni, RANGE.0, &mut bytes);
        bytes
    };
    let untouched = memory(b);
    let payload = a.fill(0, 6 * PAGE, 3);
    let evict = |number: u64| {
        let mut cluster = pair.net.cluster();
        let node = &mut cluster.nodes[b.node];
        let address = RANGE.0 + number * PAGE;
        node.driver.evict(&node.host, b.vni, address);
    };
    for number in [1, 4, 7, 1023, 1024, u32::MAX] {
        if absent {
            (0..8).for_each(evict);
        }
        let forms = [
            a.signal(segment, number),
            a.inline_write(segment, b"forged").notify(number),
            a.write(segment).from(0).to(0).bytes(100).notify(number),
            a.write(segment)
                .from(0)
                .to(0)
                .bytes(6 * PAGE)
                .notify(number),
        ];
        for form in forms {
            let command = form.issue();
            pair.net.settle();
            let errors = a.errors();
            assert_eq!(
                errors.last(),
                Some(&(command, Status::AccessDenied)),
                "{number}"
            );
        }
        assert_eq!(
            (b.signals(number.min(1023)), memory(b) == untouched),
            (0, true)
        );
    }
    assert_eq!(pair.net.counters(b.node).notifications, 0);
    assert!(pair.net.counters(b.node).errors_access >= 24);
    let errors = a.errors();
    a.write(segment)
        .from(0)
        .to(0)
        .bytes(6 * PAGE)
        .notify(5)
        .issue();
    a.signal(segment, 6).issue();
    pair.net.settle();
    assert_eq!(a.errors(), errors);
    assert_eq!((b.signals(5), b.signals(6)), (1, 1));
    assert_eq!(memory(b)[..payload.len()], payload);
}

#[test]
fn writers_signal_what_they_may_on_a_lossless_wire() {
    writers_signal_what_they_may(&Pair::lossless(), false);
}

#[test]
fn writers_signal_what_they_may_within_a_node() {
    let net = Net::new(1, 512, 8, &Limits::default());
    let (a, b) = (net.party(0, 1), net.party(0, 2));
    writers_signal_what_they_may(&Pair { net, a, b }, false);
}

#[test]
fn writers_signal_what_they_may_of_absent_pages() {
    writers_signal_what_they_may(&Pair::lossless(), true);
}

#[test]
fn writers_signal_what_they_may_on_a_lossy_wire() {
    for seed in 0..8 {
        let pair = Pair::on(Net::lossy(2, LossyWire::rough(100), seed));
        writers_signal_what_they_may(&pair, seed % 2 == 1);
    }
}

/// A signal that waits for the data before it (N18) is one that was checked; a later segment
/// with narrower permissions changes nothing of it, and is not signalled by the key of the old.
#[test]
fn the_key_of_a_revoked_segment_signals_nothing() {
    let pair = Pair::present(Net::new(2, 512, 8, &Limits::default()));
    let old = export(&pair.b, open());
    assert_eq!(pair.b.unexport(old), Status::Ok);
    let options = signalling(0, 0);
    let new = pair.b.export_to(1, NAME + 1, RANGE, ALL, options).unwrap();
    pair.a.signal(old, 5).run();
    pair.a.signal(new, 5).run();
    pair.a.write(new).from(0).to(0).bytes(PAGE).run();
    let statuses: Vec<_> = pair.a.errors().iter().map(|error| error.1).collect();
    assert_eq!(statuses, [Status::BadKey, Status::AccessDenied]);
    assert_eq!(pair.b.signals(5), 0);
    assert_eq!(pair.a.done().0, 3);
}
