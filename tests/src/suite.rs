//! All cases.

use anyhow::Context;

use crate::harness::{Case, Verdict};
use crate::host::HostNodes;
use crate::scenario::{self, Death, Places};
use crate::{capture, net, shm, vm};

/// The cases that need no virtual machine.
pub const HOST: &[Case] = &[
    Case {
        name: "host::demo_at_1_percent_loss",
        run: || net::demo_on_bad_links(1, "1,97,4095,65537,1048576,16777216"),
    },
    Case {
        name: "host::demo_at_5_percent_loss",
        run: || net::demo_on_bad_links(5, "1,97,4095,65537,1048576"),
    },
    Case {
        name: "host::demo_at_20_percent_loss",
        run: || net::demo_on_bad_links(20, "1,97,4095,65537,1048576"),
    },
    Case {
        name: "host::all_pairs_exchange_at_5_percent_loss",
        run: || net::exchange_on_bad_links(5, 10),
    },
    Case {
        name: "host::all_pairs_exchange_at_20_percent_loss",
        run: || net::exchange_on_bad_links(20, 3),
    },
    Case {
        name: "host::demo_over_udp_between_network_namespaces",
        run: net::demo_over_udp,
    },
    Case {
        name: "host::a_partition_heals_in_time_and_fails_beyond",
        run: net::partition,
    },
    Case {
        name: "host::frames_with_another_key_are_counted_and_ignored",
        run: net::another_key,
    },
    Case {
        name: "host::demo_through_shared_memory_between_device_processes",
        run: shm::demo,
    },
    Case {
        name: "host::exchange_through_shared_memory_on_bad_links",
        run: shm::bad_links,
    },
    Case {
        name: "host::a_killed_device_process_is_missed_and_joined_again",
        run: shm::killed_process,
    },
    Case {
        name: "host::a_capture_shows_the_protocol_to_wireshark",
        run: capture::wireshark_reads_it,
    },
    Case {
        name: "host::a_capture_of_perfect_links_has_every_frame",
        run: capture::perfect_links,
    },
    Case {
        name: "host::demo",
        run: || {
            let nodes = HostNodes::start(2)?;
            scenario::demo_pair(&nodes, "1,7,96,97,4095,4096,65537,1048576", 4 << 20)?;
            Ok(Verdict::Passed)
        },
    },
    Case {
        name: "host::all_pairs_of_four_nodes_exchange",
        run: || {
            let nodes = HostNodes::start(4)?;
            scenario::all_pairs_exchange(&nodes, 100)?;
            Ok(Verdict::Passed)
        },
    },
    Case {
        name: "host::processes_of_four_nodes_contend_at_5_percent_loss",
        run: || net::contention_on_bad_links(5),
    },
    Case {
        name: "host::an_intruder_is_refused",
        run: || {
            let nodes = HostNodes::start(2)?;
            scenario::intruder_is_refused(&nodes, 0, 1, None)?;
            Ok(Verdict::Passed)
        },
    },
    Case {
        name: "host::keys_are_checked_at_both_ends",
        run: || {
            let nodes = HostNodes::start(2)?;
            scenario::keys_are_checked_at_both_ends(&nodes, 0, 1)?;
            Ok(Verdict::Passed)
        },
    },
    Case {
        name: "host::a_killed_process_leaves_nothing",
        run: || {
            let nodes = HostNodes::start(2)?;
            scenario::a_killed_process_leaves_nothing(&nodes, 0, 1)?;
            Ok(Verdict::Passed)
        },
    },
    Case {
        name: "host::peers_of_a_killed_process_learn_of_it",
        run: || {
            let nodes = HostNodes::start(2)?;
            scenario::peers_of_a_killed_process_learn_of_it(&nodes, 0, 1)?;
            Ok(Verdict::Passed)
        },
    },
    Case {
        name: "host::notifications_of_every_kind",
        run: || {
            let nodes = HostNodes::start(2)?;
            scenario::notifications_of_every_kind(&nodes, 300)?;
            Ok(Verdict::Passed)
        },
    },
    Case {
        name: "host::an_end_of_a_channel_is_killed",
        run: || {
            for receiver_dies in [false, true] {
                let nodes = HostNodes::start(2)?;
                scenario::the_end_of_a_channel_is_killed(&nodes, receiver_dies)?;
            }
            Ok(Verdict::Passed)
        },
    },
    Case {
        name: "host::a_death_in_line_is_survived",
        run: || {
            let places = Places {
                home: 0,
                mender: 1,
                first: 2,
                victim: 3,
                last: 4,
            };
            for death in Death::ALL {
                let nodes = HostNodes::start(5)?;
                scenario::a_death_in_line_is_survived(&nodes, places, death)
                    .with_context(|| format!("{death:?}"))?;
            }
            Ok(Verdict::Passed)
        },
    },
    Case {
        name: "host::a_scribbler_harms_nobody",
        run: || {
            // Its node takes no part in the exchange: a host-mode node is one process.
            let nodes = HostNodes::start(3)?;
            scenario::scribbler_harms_nobody(&nodes, 2, 2)?;
            Ok(Verdict::Passed)
        },
    },
];

/// The cases that boot virtual machines.
pub const VM: [&[Case]; 5] = [vm::CASES, vm::ORDERING, vm::WIRE, vm::MEMORY, vm::SYNC];
