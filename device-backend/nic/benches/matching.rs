//! What a match costs, against how much is queued (Q4).
//!
//! `cargo bench -p qnic-nic --bench matching` prints nanoseconds for each match, those of the
//! fastest round: the work is the same in all, what else the machine does is not. What has
//! matched is queued again, so that n stay.
//!
//! ```text
//!   posted       n receives wait      arrive (matches), post (is queued)
//!   unexpected   n messages wait      post (matches), arrive (is queued)
//! ```
//! Messages have 100 sources and a tag each; which one is next is random. A receive that ignores
//! some bits of the tag walks over half of the unexpected messages, or half of its source's.

use std::hint::black_box;
use std::time::Instant;

use qnic_nic::testing::matching::{Arrived, Bounds, Matching, Pattern, Posted, Sender, Takes};

const QUEUED: [u32; 3] = [1, 100, 10_000];
const ROUNDS: usize = 31;
const MATCHES_A_ROUND: u32 = 5_000;

/// Node and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Source(u16, u16);

impl Sender for Source {}

struct Shape {
    name: &'static str,
    /// What takes a message.
    pattern: fn(Source, u64) -> Pattern<Source>,
}

/// Source and tag of a message.
fn message(number: u32) -> (Source, u64) {
    (Source((number % 100) as u16, 1), number.into())
}

/// Four masks in turn: each message is looked up under all of them.
fn mixed(source: Source, tag: u64) -> Pattern<Source> {
    match tag % 4 {
        0 => Pattern::exact(source, tag),
        1 => Pattern::any_source(tag),
        2 => Pattern::any_tag(source),
        _ => Pattern::new(Some(source), tag, 0xff << 32),
    }
}

const SHAPES: [Shape; 6] = [
    Shape {
        name: "exact",
        pattern: Pattern::exact,
    },
    Shape {
        name: "ANY_PROC",
        pattern: |_, tag| Pattern::any_source(tag),
    },
    Shape {
        name: "ANY_TAG",
        pattern: |source, _| Pattern::any_tag(source),
    },
    Shape {
        name: "partial",
        pattern: |source, tag| Pattern::new(Some(source), tag, 0xff << 32),
    },
    Shape {
        name: "partial, ANY_PROC",
        pattern: |_, tag| Pattern::new(None, tag, 0xff << 32),
    },
    Shape {
        name: "all in turn",
        pattern: mixed,
    },
];

type BenchMatching = Matching<Source, u32, u32>;

fn empty() -> BenchMatching {
    Matching::new(Bounds {
        receives: 10_000,
        masks: 8,
        messages: 10_000,
    })
}

impl Shape {
    /// Posts the receive for a message; returns the number of the message that it takes.
    fn post(&self, matching: &mut BenchMatching, number: u32) -> Option<u32> {
        let (source, tag) = message(number);
        let pattern = (self.pattern)(source, tag);
        match matching.post(black_box(pattern), Takes::One, number) {
            Ok(Posted::Matched(message)) => Some(message.handle),
            _ => None,
        }
    }

    /// Lets a message arrive; returns the number of the receive that takes it.
    fn arrive(&self, matching: &mut BenchMatching, number: u32) -> Option<u32> {
        let (source, tag) = message(number);
        match matching.arrive(black_box(source), tag, number) {
            Ok(Arrived::Matched(receive)) => Some(receive.handle),
            _ => None,
        }
    }

    /// Nanoseconds of a match while `queued` receives are posted.
    fn posted(&self, queued: u32) -> f64 {
        let mut matching = empty();
        (0..queued).for_each(|number| assert_eq!(self.post(&mut matching, number), None));
        fastest(queued, |number| {
            let taker = self
                .arrive(&mut matching, number)
                .expect("a receive takes it");
            assert_eq!(self.post(&mut matching, taker), None);
        })
    }

    /// Nanoseconds of a match while `queued` messages are unexpected.
    fn unexpected(&self, queued: u32) -> f64 {
        let mut matching = empty();
        (0..queued).for_each(|number| assert_eq!(self.arrive(&mut matching, number), None));
        fastest(queued, |number| {
            let taken = self
                .post(&mut matching, number)
                .expect("it takes a message");
            assert_eq!(self.arrive(&mut matching, taken), None);
        })
    }
}

/// Nanoseconds of each call, in the fastest round, with random numbers below `queued`.
fn fastest(queued: u32, mut one: impl FnMut(u32)) -> f64 {
    let mut random = 1u32;
    let rounds = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        for _ in 0..MATCHES_A_ROUND {
            // Xorshift.
            random ^= random << 13;
            random ^= random >> 17;
            random ^= random << 5;
            one(random % queued);
        }
        start.elapsed().as_nanos() as f64 / f64::from(MATCHES_A_ROUND)
    });
    rounds.fold(f64::INFINITY, f64::min)
}

fn table(title: &str, measure: impl Fn(&Shape, u32) -> f64) {
    print!("{title:<20}");
    QUEUED.iter().for_each(|queued| print!("{queued:>10}"));
    println!();
    for shape in &SHAPES {
        print!("{:<20}", shape.name);
        for queued in QUEUED {
            print!("{:>10.0}", measure(shape, queued));
        }
        println!();
    }
}

fn main() {
    println!("nanoseconds for each match");
    table("posted", Shape::posted);
    table("unexpected", Shape::unexpected);
}
