//! Names of processes, and groups of applications (Q14).

use std::time::Duration;

use qnic::group::Application;
use qnic::machine::Place;
use qnic::{Endpoint, Error, NodeId, Port, Status};

use crate::cluster::{status, Cluster, SOON};

const NOW: Duration = Duration::ZERO;

fn process(cluster: &Cluster, node: u16) -> Endpoint {
    cluster.nic(node).register(Port(5)).unwrap()
}

fn exchange(cluster: &Cluster) {
    let endpoints = [0, 1, 2].map(|node| process(cluster, node));
    let [a, b, c] = &endpoints;
    std::thread::scope(|scope| {
        // Begins to wait before any process has the name.
        let waits = scope.spawn(|| a.names().find("solver", 1, SOON));
        let _name = b.names().register("solver", 1).unwrap();
        let place = (NodeId(1), Port(5));
        assert_eq!(waits.join().unwrap().unwrap(), place);
        assert_eq!(c.names().find("solver", 1, SOON).unwrap(), place);
        assert_eq!(b.names().find("solver", 1, NOW).unwrap(), place);
        let Err(Error::Name(error)) = c.names().timeout(NOW).register("solver", 1) else {
            panic!("a name of two");
        };
        assert_eq!((error.status, error.holder), (Status::NameTaken, place));
        let said = error.to_string();
        assert_eq!(
            said,
            "name solver/1: another process has it (node 1, port 5): take another name, or end that \
             one"
        );
    });
    // Dropped: another process has it as soon as the other NIC knows.
    let name = c.names().timeout(SOON).register("solver", 1).unwrap();
    assert_eq!((name.application(), name.process()), ("solver", 1));
    let found = || a.names().find("solver", 1, SOON).unwrap() == (NodeId(2), Port(5));
    assert!(std::iter::repeat_with(found).any(|found| found));
}

#[test]
fn a_process_is_found_by_its_name() {
    exchange(&Cluster::new(3));
}

#[test]
fn a_process_is_found_by_its_name_on_bad_links() {
    exchange(&Cluster::on_bad_links(3, 10.0));
}

/// The holder goes; the next one registers at once, and so on.
#[test]
fn a_name_goes_from_one_process_to_the_next() {
    let cluster = Cluster::on_bad_links(3, 5.0);
    let endpoints = [0, 1, 2].map(|node| process(&cluster, node));
    let mut name = endpoints[0].names().register("turn", 0).unwrap();
    for round in 1..20 {
        drop(name);
        let next = &endpoints[round % 3];
        name = next.names().timeout(SOON).register("turn", 0).unwrap();
    }
}

#[test]
fn a_name_that_is_registered_twice_ends_with_the_last_one() {
    let cluster = Cluster::new(2);
    let [a, b] = [0, 1].map(|node| process(&cluster, node));
    let first = a.names().register("twice", 0).unwrap();
    let second = a.names().register("twice", 0).unwrap();
    drop(first);
    let place = (NodeId(0), Port(5));
    assert_eq!(b.names().find("twice", 0, SOON).unwrap(), place);
    assert_eq!(a.names().find("twice", 0, NOW).unwrap(), place);
    assert_eq!(
        status(b.names().timeout(NOW).register("twice", 0)),
        Status::NameTaken
    );
    drop(second);
    let found = a.names().find("twice", 0, NOW);
    assert_eq!(status(found), Status::NameNotFound);
    // Threads that take it and let it go at the same time.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let _name = a.names().register("twice", 1).unwrap();
                    assert_eq!(a.names().find("twice", 1, NOW).unwrap(), place);
                }
            });
        }
    });
    let found = a.names().find("twice", 1, NOW);
    assert_eq!(status(found), Status::NameNotFound);
}

#[test]
fn what_is_wrong_with_a_name_is_said() {
    let cluster = Cluster::new(1);
    let endpoint = process(&cluster, 0);
    for bad in ["", "seventeen letters", "a\0b"] {
        let error = endpoint.names().register(bad, 0).unwrap_err();
        assert!(matches!(error, Error::BadName(_)), "{error}");
    }
    let short = Duration::from_millis(20);
    let error = endpoint.names().find("absent", 0, short).unwrap_err();
    assert_eq!(
        error.to_string(),
        "name absent/0: no process has registered it in time: is it running, and its node up?"
    );
    let names: Vec<_> = (0..8)
        .map(|process| endpoint.names().register("many", process).unwrap())
        .collect();
    assert_eq!(
        status(endpoint.names().register("many", 8)),
        Status::Exhausted
    );
    drop(names);
    // Withdrawn in the order of the commands.
    let _name = endpoint.names().register("many", 8).unwrap();
    let found = endpoint.names().find("many", 7, NOW);
    assert_eq!(status(found), Status::NameNotFound);
}

/// A launcher says application, rank and size: each endpoint has its name at once, and all of them
/// form the group of the application.
#[test]
fn a_launcher_gives_names_and_the_group_of_the_application() {
    let cluster = Cluster::new(2);
    let opened = [cluster.nic(0), cluster.nic(1)];
    let place = |rank| Place::new("launched", rank, 3).unwrap();
    let nics: Vec<_> = (0..3u32)
        .map(|rank| opened[rank as usize % 2].clone().with_place(place(rank)))
        .collect();
    let endpoints: Vec<_> = nics
        .iter()
        .map(|nic| nic.register(Port(0)).unwrap())
        .collect();
    let places = endpoints.iter().map(|it| (it.node(), it.port()));
    for (rank, place) in (0..).zip(places) {
        let names = endpoints[0].names();
        assert_eq!(names.find("launched", rank, SOON).unwrap(), place);
    }
    // A further endpoint of a rank has no name, and takes none away.
    let further = nics[1].register(Port(0)).unwrap();
    let found = further.names().find("launched", 1, SOON).unwrap();
    assert_eq!(found, (endpoints[1].node(), endpoints[1].port()));
    std::thread::scope(|scope| {
        for ((rank, nic), endpoint) in (0..).zip(&nics).zip(&endpoints) {
            scope.spawn(move || {
                let joined = Application::join_placed(endpoint, nic, SOON).unwrap();
                let joined = joined.expect("a place");
                assert_eq!((joined.rank(), joined.size()), (rank, 3));
                joined.barrier().timeout(SOON).wait().unwrap();
            });
        }
    });
    // The name stays as long as the endpoint.
    let [alone, _] = opened;
    let named = alone.register_as(Port(9), "alone", 7).unwrap();
    let found = further.names().find("alone", 7, SOON).unwrap();
    assert_eq!(found, (NodeId(0), Port(9)));
    let taken = alone.register_as(Port(10), "alone", 7);
    assert!(matches!(taken, Err(Error::Name(_))));
    drop(named);
    let _next = alone.register_as(Port(9), "alone", 7).unwrap();
    assert!(Application::join_placed(&further, &alone, NOW)
        .unwrap()
        .is_none());
}

/// No process is told where another is.
#[test]
fn an_application_forms_by_itself_and_again() {
    let cluster = Cluster::on_bad_links(3, 2.0);
    let nics: Vec<_> = (0..3).map(|node| cluster.nic(node)).collect();
    let ports = (0..9u16).map(|place| (&nics[usize::from(place % 3)], Port(10 + place)));
    let endpoints: Vec<_> = ports
        .map(|(nic, port)| nic.register(port).unwrap())
        .collect();
    for round in 0..3 {
        std::thread::scope(|scope| {
            for (number, endpoint) in (0..9).zip(&endpoints) {
                scope.spawn(move || {
                    // Another process is number 0 each time.
                    let number = (number + round) % 9;
                    let application = format!("round {round}");
                    let joined = Application::join(endpoint, &application, number, 9, SOON);
                    let joined = joined.unwrap();
                    assert_eq!((joined.rank(), joined.size()), (number, 9));
                    joined.barrier().timeout(SOON).wait().unwrap();
                    for other in 0..9 {
                        joined.find(other, SOON).unwrap();
                    }
                    joined.barrier().timeout(SOON).wait().unwrap();
                });
            }
        });
    }
}
