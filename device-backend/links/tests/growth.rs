//! Turns and Acks of a write, against how many peers or processes take turns (P9): counted, by the engine
//! of the example `growth`.

#[path = "../examples/growth/engine.rs"]
#[allow(dead_code)]
mod engine;
#[path = "../examples/scaling/node.rs"]
#[allow(dead_code)]
mod node;

use engine::{Engine, Run};

/// Turns, rounds and Acks of a thousand writes.
fn counts(peers: usize, endpoints: usize, fenced: bool) -> [u64; 3] {
    let run = Run {
        peers,
        endpoints,
        fenced,
        writes: 5000.max(50 * (peers * endpoints) as u64),
    };
    let mut engine = Engine::new(&run);
    engine.run(&run, run.writes);
    let before = [engine.turns, engine.rounds, engine.acks(&run)];
    engine.run(&run, run.writes);
    let after = [engine.turns, engine.rounds, engine.acks(&run)];
    assert_eq!(engine.errors(&run), 0);
    std::array::from_fn(|it| (after[it] - before[it]) * 1000 / run.writes)
}

#[test]
fn peers_that_take_turns_have_no_turns_and_send_no_acks() {
    for fenced in [true, false] {
        let [turns, rounds, acks] = counts(1, 1, fenced);
        assert!(turns <= rounds + rounds / 5, "{turns} in {rounds}");
        assert_eq!(acks, 0);
        for peers in [16, 63] {
            let [more, same, acks] = counts(peers, 1, fenced);
            assert!(same <= rounds + rounds / 5, "{same} and {rounds} rounds");
            assert!(more <= turns + turns / 5, "{more} and {turns} turns");
            assert_eq!(acks, 0);
        }
    }
}

#[test]
fn endpoints_that_take_turns_are_found_at_once() {
    let [turns, rounds, _] = counts(1, 1, true);
    for endpoints in [16, 120] {
        let [more, same, acks] = counts(1, endpoints, true);
        assert!(same <= rounds + rounds / 20, "{same} and {rounds} rounds");
        assert!(more <= turns + turns / 20, "{more} and {turns} turns");
        assert_eq!(acks, 0);
    }
}
