//! All members of a group in one thread, whose parts are put together as the NICs do.

use super::*;
use crate::pointers::test::room;

const MEMBERS: usize = 3;
const U8: u32 = 1;

/// What members have when all parts were put together: of bytes, by Or or as the root has them.
fn carried(kind: Kind, root: Option<u32>, count: usize) -> Vec<Vec<u8>> {
    let element = |rank: usize, at: usize| (rank * 71 + at * 13 + at / 256) as u8;
    let mut given: Vec<Vec<u8>> = (0..MEMBERS)
        .map(|rank| (0..MEMBERS * count).map(|at| element(rank, at)).collect())
        .collect();
    let mut taken = vec![vec![0; MEMBERS * count]; MEMBERS];
    let buffers = given.iter_mut().zip(&mut taken);
    let plans: Vec<Plan> = buffers
        .enumerate()
        .map(|(rank, (given, taken))| {
            let standing = Standing {
                rank: rank as u32,
                size: MEMBERS as u32,
                root,
            };
            let ask = Ask {
                kind,
                datatype: U8,
                operation: sys::BOR,
                count,
                given: room(given),
                taken: room(taken),
            };
            Plan::new(&ask, standing).unwrap()
        })
        .collect();
    for part in 0..plans[0].parts() {
        let all: Vec<Option<Vec<u8>>> = plans.iter().map(|it| it.give(part).unwrap()).collect();
        let wire = match plans[0].way(part) {
            Carried::Barrier => Vec::new(),
            Carried::Broadcast(root) => all[root as usize].clone().unwrap(),
            Carried::Reduce(..) => all.into_iter().flatten().reduce(or).unwrap(),
        };
        assert_eq!(wire.len(), plans[0].wire_length(part));
        for plan in &plans {
            assert_eq!(
                (plan.parts(), plan.way(part)),
                (plans[0].parts(), plans[0].way(part))
            );
            plan.take(part, wire.clone()).unwrap();
        }
    }
    drop(plans);
    taken
}

fn or(a: Vec<u8>, b: Vec<u8>) -> Vec<u8> {
    a.iter().zip(&b).map(|(a, b)| a | b).collect()
}

#[test]
fn parts_of_all_members_make_the_whole() {
    let element = |rank: usize, at: usize| (rank * 71 + at * 13 + at / 256) as u8;
    for count in [0, 1, 5, PART, PART + 3] {
        let slice = |of: usize, number: usize| -> Vec<u8> {
            (number * count..(number + 1) * count)
                .map(|at| element(of, at))
                .collect()
        };
        let own = |rank: usize| slice(rank, 0);
        let all_own: Vec<u8> = (0..MEMBERS).flat_map(own).collect();
        assert!(carried(Kind::Allgather, None, count)
            .iter()
            .all(|it| *it == all_own));
        let gathered = carried(Kind::Gather, Some(1), count);
        assert!(gathered[1] == all_own && gathered[2].iter().all(|byte| *byte == 0));
        for (rank, got) in carried(Kind::Scatter, Some(2), count).iter().enumerate() {
            assert!(got[..count] == slice(2, rank));
        }
        for (rank, got) in carried(Kind::Alltoall, None, count).iter().enumerate() {
            let expected: Vec<u8> = (0..MEMBERS).flat_map(|of| slice(of, rank)).collect();
            assert!(*got == expected);
        }
        for (rank, got) in carried(Kind::ReduceScatter, None, count).iter().enumerate() {
            let expected = (0..MEMBERS).map(|of| slice(of, rank)).reduce(or).unwrap();
            assert!(got[..count] == expected);
        }
    }
}

#[test]
fn what_has_no_meaning_is_refused() {
    const FLOAT: u32 = 8;
    const COMPLEX: u32 = 10;
    for (datatype, operation) in [
        (FLOAT, sys::BOR),
        (COMPLEX, sys::SUM),
        (U8, sys::ATOMIC_WRITE),
    ] {
        assert_eq!(Reduction::new(datatype, operation), Err(NO_COLLECTIVE));
    }
    assert_eq!(size_of_type(20), Err(NO_COLLECTIVE));
    let standing = Standing {
        rank: 0,
        size: 2,
        root: None,
    };
    let ask = |kind, count| Ask {
        kind,
        datatype: U8,
        operation: sys::SUM,
        count,
        given: Out::NULL,
        taken: Out::NULL,
    };
    let refused = |kind, count| Plan::new(&ask(kind, count), standing).err();
    assert_eq!(refused(Kind::Broadcast, 0), Some(INVALID));
    assert_eq!(refused(Kind::Allreduce, 1), Some(INVALID));
    assert_eq!(refused(Kind::Allreduce, MESSAGE_MAX + 1), Some(TOO_LONG));
    assert_eq!(refused(Kind::Allreduce, 0), None);
}

#[test]
fn truths_and_short_integers_travel_as_words() {
    let truths = Wire::Truths(4, true);
    let floats: Vec<u8> = [0.0f32, -0.0, 2.5]
        .iter()
        .flat_map(|it| it.to_le_bytes())
        .collect();
    let wire = truths.encode(floats);
    assert_eq!(wire, [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    let ones: Vec<u8> = [0.0f32, 0.0, 1.0]
        .iter()
        .flat_map(|it| it.to_le_bytes())
        .collect();
    assert_eq!(truths.decode(wire, 12), ones);
    let signed = Wire::Short(2, true);
    let wire = signed.encode(vec![0xfe, 0xff, 3, 0]);
    assert_eq!(wire, [0xfe, 0xff, 0xff, 0xff, 3, 0, 0, 0]);
    assert_eq!(signed.decode(wire, 4), [0xfe, 0xff, 3, 0]);
    assert_eq!(Wire::Short(1, false).encode(vec![0x80]), [0x80, 0, 0, 0]);
}
