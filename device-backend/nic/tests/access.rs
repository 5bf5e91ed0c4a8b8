//! Pages that the NIC may only read (N2, N7, N11): constants, pages that are copied on
//! write, pages of files that are being written back.

use qnic_abi::atomic::Function;
use qnic_abi::Status;
use qnic_nic::testing::{page, LossyWire, Net, Pair, Transfer, Writable, PAGE};
use qnic_nic::Limits;

/// A pair whose second process has a page 1 that is writable as this says.
fn pair(writable: Writable) -> Pair {
    let pair = Pair::absent(&Limits::default(), &[]);
    pair.b.fill(page(1), PAGE, 7);
    pair.b.set_writable(page(1), writable);
    pair
}

/// A transfer of whole pages, to and from pages of the same numbers.
trait Whole {
    fn whole(self, first: u64, count: u64) -> Self;
}

impl Whole for Transfer<'_> {
    fn whole(self, first: u64, count: u64) -> Self {
        self.from(page(first)).to(page(first)).bytes(count * PAGE)
    }
}

/// Flags of the faults of the second node: for writing or not.
fn faults(net: &Net) -> Vec<u16> {
    let cluster = net.cluster();
    cluster.nodes[1]
        .faults
        .iter()
        .map(|fault| fault.flags.get())
        .collect()
}

#[test]
fn a_read_only_page_is_source_and_never_destination() {
    let Pair { net, a, b } = pair(Writable::Never);
    net.answer_faults(true);
    let bytes = b.bytes(page(1), PAGE);
    // Of a read from it, and of a write by its own process.
    a.read(&b).whole(1, 1).run();
    assert!(a.holds(page(1), &bytes));
    a.fill(page(1), PAGE, 8);
    b.write(&a).whole(1, 1).run();
    assert!(a.holds(page(1), &bytes));
    assert_eq!((a.errors(), b.errors()), (vec![], vec![]));
    // A write of a peer, an atomic operation, a read by its own process.
    a.fill(page(1), PAGE, 9);
    let number = a.write(&b).whole(1, 1).notify(5).run();
    assert_eq!(a.errors(), [(number, Status::ReadOnlyMemory)]);
    assert_eq!(b.signals(5), 0);
    let number = a.atomic(Function::Increment, &b, [1, 0]).to(page(1)).run();
    assert_eq!(a.errors()[1], (number, Status::ReadOnlyMemory));
    let number = b.read(&a).whole(1, 1).run();
    assert_eq!(b.errors(), [(number, Status::ReadOnlyMemory)]);
    assert!(b.holds(page(1), &bytes), "it was written to");
    // What lies beside it is written all the same.
    let beside = a.fill(page(2), PAGE, 10);
    a.write(&b).whole(2, 1).run();
    assert!(b.holds(page(2), &beside));
    net.assert_unlocked();
    net.assert_holds_nothing(1);
}

/// A page is there for reading; the write asks for more, once, and has its data in bounce
/// memory meanwhile.
#[test]
fn a_write_asks_for_a_page_that_can_only_be_read_yet() {
    let Pair { net, a, b } = pair(Writable::OnFault);
    a.read(&b).whole(1, 1).run();
    assert_eq!(faults(&net), [0]);
    net.answer(1, 0, 1);
    net.run();
    assert!(a.holds(page(1), &b.bytes(page(1), PAGE)));
    for seed in [8, 9] {
        let bytes = a.fill(page(1), PAGE, seed);
        a.write(&b).whole(1, 1).run();
        if seed == 8 {
            assert_eq!(faults(&net), [1]);
            assert!(!b.holds(page(1), &bytes));
            net.answer(1, 0, 1);
            net.run();
        }
        assert_eq!(faults(&net), []);
        assert!(b.holds(page(1), &bytes));
    }
    // Written back and for reading again: what was written before is kept.
    let bytes = b.bytes(page(1), PAGE);
    b.evict(page(1));
    a.read(&b).whole(1, 1).run();
    net.answer(1, 0, 1);
    net.run();
    assert!(a.holds(page(1), &bytes));
    a.write(&b).whole(1, 1).run();
    assert_eq!(faults(&net), [1]);
    net.answer(1, 0, 1);
    net.settle();
    assert_eq!(a.errors(), []);
    net.assert_unlocked();
    net.assert_holds_nothing(1);
}

/// A reader and a writer wait for the same page: two faults, and the answer to one
/// fails none that waits for the other.
#[test]
fn a_reader_does_not_fail_with_a_writer() {
    for first in [0, 1] {
        let Pair { net, a, b } = pair(Writable::Never);
        let number = a.write(&b).whole(1, 1).issue();
        a.read(&b).whole(1, 1).run();
        assert_eq!(faults(&net), [1, 0]);
        net.answer(1, first, 1);
        net.run();
        net.answer(1, 0, 1);
        net.settle();
        assert_eq!(a.errors(), [(number, Status::ReadOnlyMemory)]);
        assert!(a.holds(page(1), &b.bytes(page(1), PAGE)));
        net.assert_holds_nothing(1);
    }
}

/// A table of faults with room for one: what waits behind a fault of the other kind is
/// delayed, neither failed with it nor forgotten.
#[test]
fn a_full_table_of_faults_mixes_no_accesses() {
    let limits = Limits {
        faults: 1,
        ..Limits::default()
    };
    let Pair { net, a, b } = Pair::absent(&limits, &[]);
    b.fill(page(1), PAGE, 7);
    b.set_writable(page(1), Writable::Never);
    let number = a.write(&b).whole(1, 1).issue();
    a.read(&b).whole(1, 1).run();
    assert_eq!(faults(&net), [1]);
    net.answer(1, 0, 1);
    net.run();
    assert_eq!(faults(&net), [0]);
    net.answer(1, 0, 1);
    net.settle();
    assert_eq!(a.errors(), [(number, Status::ReadOnlyMemory)]);
    assert!(a.holds(page(1), &b.bytes(page(1), PAGE)));
}

/// Over a lossy wire, with all pages copied on write, every byte arrives.
#[test]
fn pages_that_become_writable_lose_nothing_on_a_lossy_wire() {
    for seed in 0..20 {
        let Pair { net, a, b } = Pair::on(Net::lossy(2, LossyWire::steady(20_000), seed));
        for number in 0..8 {
            b.set_writable(page(number), Writable::OnFault);
        }
        for round in 0..3 {
            let bytes = a.fill(page(0), 8 * PAGE, seed * 10 + round);
            a.write(&b).whole(0, 8).issue();
            net.settle();
            assert!(b.holds(page(0), &bytes));
            for number in 0..8 {
                b.evict(page(number));
            }
            a.fill(page(0), 8 * PAGE, 99);
            a.read(&b).whole(0, 8).issue();
            net.settle();
            assert!(a.holds(page(0), &bytes), "a dirty bit is lost");
        }
        assert_eq!(a.errors(), []);
        net.assert_unlocked();
    }
}
