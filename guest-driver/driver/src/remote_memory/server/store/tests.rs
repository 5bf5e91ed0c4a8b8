use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

#[test]
fn a_page_that_is_read_outlives_its_successor() {
    let mut store = Store::new(1, 1, 1).unwrap();
    store.insert(0, 7, 1, "old").unwrap();
    assert_eq!(
        store.insert(0, 8, 2, "no"),
        Err("no"),
        "no room for another"
    );
    let (entry, _) = store.find(0, 7).unwrap();
    store.begin_read(entry);
    assert_eq!(store.replace(entry, 3, "new"), Ok(None));
    assert_eq!(store.page(entry), Some(&"old"));
    assert_eq!(store.find(0, 7).map(|found| found.1), Some(3));
    let (newer, _) = store.find(0, 7).unwrap();
    store.begin_read(newer);
    assert_eq!(
        store.replace(newer, 4, "late"),
        Err("late"),
        "no room for both"
    );
    assert_eq!(store.end_read(newer), None);
    assert_eq!(store.end_read(entry), Some("old"));
    assert_eq!(store.replace(newer, 5, "last"), Ok(Some("new")));
}

#[test]
fn what_a_client_has_can_be_taken_page_by_page() {
    let mut store = Store::new(4, 2, 1).unwrap();
    for block in 0..3 {
        store.insert(1, block, 1, block).unwrap();
    }
    store.insert(0, 0, 1, 9).unwrap();
    let (read, _) = store.find(1, 1).unwrap();
    store.begin_read(read);
    let mut taken = Vec::new();
    while let Some(page) = store.pop(1) {
        taken.extend(page);
    }
    taken.sort_unstable();
    assert_eq!(taken, [0, 2]);
    assert_eq!(store.find(1, 0), None);
    assert_eq!(store.find(0, 0).map(|found| found.1), Some(1));
    assert_eq!(store.end_read(read), Some(1));
    assert_eq!(store.used(), 1);
}

#[derive(Debug, Clone)]
enum Step {
    Write { client: u8, block: u64 },
    Read { client: u8, block: u64 },
    Sent,
    Drop { client: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0u8..3, 0u64..6);
    prop_oneof![
        6 => place().prop_map(|(client, block)| Step::Write { client, block }),
        3 => place().prop_map(|(client, block)| Step::Read { client, block }),
        3 => Just(Step::Sent),
        1 => (0u8..3).prop_map(|client| Step::Drop { client }),
    ]
}

proptest! {
    /// The store against a map; each page is in one place, and none is lost.
    #[test]
    fn the_store_is_a_map(steps in prop::collection::vec(step(), 1..200)) {
        let mut store = Store::new(10, 3, 4).unwrap();
        let mut map: HashMap<(u8, u64), u64> = HashMap::new();
        let mut reading: Vec<(EntryIndex, u64)> = Vec::new();
        let (mut given, mut returned) = (0u64, 0u64);
        for (version, step) in (1u64..).zip(steps) {
            match step {
                Step::Write { client, block } => {
                    given += 1;
                    let back = match store.find(client, block) {
                        Some((entry, _)) => match store.replace(entry, version, version) {
                            Ok(old) => old,
                            Err(new) => Some(new),
                        },
                        None => store.insert(client, block, version, version).err(),
                    };
                    returned += u64::from(back.is_some());
                    if back != Some(version) {
                        map.insert((client, block), version);
                    }
                }
                Step::Read { client, block } if reading.len() < 4 => {
                    if let Some((entry, version)) = store.find(client, block) {
                        store.begin_read(entry);
                        reading.push((entry, version));
                    }
                }
                Step::Read { .. } => {}
                Step::Sent => {
                    if let Some((entry, version)) = reading.pop() {
                        prop_assert_eq!(store.page(entry), Some(&version));
                        returned += u64::from(store.end_read(entry).is_some());
                    }
                }
                Step::Drop { client } => {
                    while let Some(page) = store.pop(client) {
                        returned += u64::from(page.is_some());
                    }
                    map.retain(|place, _| place.0 != client);
                }
            }
            for (&(client, block), &version) in &map {
                let (entry, found) = store.find(client, block).unwrap();
                prop_assert_eq!((found, store.page(entry)), (version, Some(&version)));
            }
            prop_assert_eq!(store.used(), map.len());
            let orphans = given - returned - map.len() as u64;
            prop_assert!(orphans <= reading.len() as u64);
        }
    }
}
