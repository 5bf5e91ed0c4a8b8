//! All cases.

use anyhow::{Context, Result};

use crate::harness::{cases, Case};
use crate::scenario::{self, Contenders, Death, Placement, Together, SIGCONT, SIGSTOP};
use crate::{capture, net, shm, trace, trial, vm};
use qnic_trials::nodes::host::HostNodes;

/// Nodes 0, 2, … belong to one engine of the device process, and 1, 3, … to another.
const TWO_ENGINES: &str = "[engine]\nengines = 2\n";

/// The cases that need no virtual machine.
pub(crate) const HOST: &[Case] = cases! { "host":
    demo_at_1_percent_loss => net::demo_on_bad_links(1, "1,97,4095,65537,1048576,16777216"),
    demo_at_5_percent_loss => net::demo_on_bad_links(5, "1,97,4095,65537,1048576"),
    demo_at_20_percent_loss: 0 => net::demo_on_bad_links(20, "1,97,4095,65537,262144"),
    all_pairs_exchange_at_5_percent_loss => net::on_bad_links(3, 5, |nodes| {
        scenario::all_pairs_exchange(nodes, 10)
    }),
    all_pairs_exchange_at_20_percent_loss => net::on_bad_links(3, 20, |nodes| {
        scenario::all_pairs_exchange(nodes, 3)
    }),
    demo_over_udp_between_network_namespaces => net::demo_over_udp(),
    a_partition_heals_in_time_and_fails_beyond: 0 => net::partition(),
    one_network_is_partitioned_and_the_other_goes_on => net::two_networks(),
    a_trial_without_guests_ends_as_its_programs_do => trial::without_guests(),
    a_wrong_key_is_rejected_and_named_by_both_ends: 0 => net::another_key(),
    encryption_on_one_side_is_named_by_both_ends: 0 => net::encryption_on_one_side(),
    demo_through_shared_memory_between_device_processes => shm::demo(),
    exchange_through_shared_memory_on_bad_links => shm::bad_links(),
    a_killed_device_process_is_missed_and_joined_again => shm::killed_process(),
    what_waits_for_a_dead_or_still_device_process_ends: 0 => shm::silent_process(),
    what_waits_for_a_silent_host_ends: 0 => net::silent_host(),
    what_waits_for_a_node_that_is_cut_off_ends: 0 => net::silent_link(),
    a_capture_shows_the_protocol_to_wireshark => capture::wireshark_reads_it(),
    a_capture_of_lossless_links_has_every_frame => capture::lossless_links(),
    wireshark_shows_what_ethernet_ports_carry => capture::wireshark_reads_ethernet(),
    demo => on(2, |nodes| {
        let sizes = "1,7,96,97,4095,4096,65537,1048576";
        scenario::demo_between(nodes, [0, 1], sizes, 4 << 20)
    }),
    top_shows_what_nodes_do => on(3, |nodes| scenario::top_shows_what_nodes_do(nodes)),
    a_trace_shows_the_life_of_operations => trace::life_of_operations(),
    a_trace_shows_collectives => trace::collectives(),
    a_trace_of_bad_links_shows_what_is_sent_again => trace::bad_links(),
    all_pairs_of_four_nodes_exchange => on(4, |nodes| scenario::all_pairs_exchange(nodes, 100)),
    all_pairs_of_two_engines_exchange => two_engines(4, |nodes| {
        scenario::all_pairs_exchange(nodes, 100)
    }),
    all_pairs_of_two_engines_exchange_at_5_percent_loss => {
        net::on_bad_links_with(TWO_ENGINES, 4, 5, |nodes| scenario::all_pairs_exchange(nodes, 10))
    },
    random_messages_between_two_engines => two_engines(4, |nodes| {
        scenario::random_messages(nodes, 1, 300, 3)
    }),
    a_process_that_another_engine_writes_to_is_killed => two_engines(2, |nodes| {
        scenario::a_killed_process_leaves_nothing(nodes, [0, 1])?;
        scenario::peers_of_a_killed_process_learn_of_it(nodes, [0, 1])
    }),
    processes_of_four_nodes_contend_at_5_percent_loss => {
        // A host-mode node is one program.
        let each = Contenders { programs: 1, workers: 4, rounds: 8 };
        net::on_bad_links(4, 5, |nodes| scenario::contention(nodes, each))
    },
    an_isolation_probe_is_refused => on(2, |nodes| {
        scenario::isolation_probe_is_refused(nodes, [0, 1], None)
    }),
    keys_are_checked_at_both_ends => on(2, |nodes| {
        scenario::keys_are_checked_at_both_ends(nodes, [0, 1])
    }),
    a_killed_process_leaves_nothing => on(2, |nodes| {
        scenario::a_killed_process_leaves_nothing(nodes, [0, 1])
    }),
    peers_of_a_killed_process_learn_of_it => on(2, |nodes| {
        scenario::peers_of_a_killed_process_learn_of_it(nodes, [0, 1])
    }),
    requests_of_a_process_that_is_paused_and_killed => on(2, |nodes| {
        scenario::requests_are_told_once(nodes, [0, 1])
    }),
    a_process_forks_between_its_transfers => on(1, |nodes| {
        scenario::a_process_forks_between_its_transfers(nodes)
    }),
    notifications_of_every_kind => on(2, |nodes| {
        scenario::notifications_of_every_kind(nodes, 300)
    }),
    random_messages_of_many_processes => on(3, |nodes| {
        scenario::random_messages(nodes, 1, 300, 1)
    }),
    random_messages_at_5_percent_loss => net::on_bad_links(3, 5, |nodes| {
        scenario::random_messages(nodes, 1, 100, 2)
    }),
    a_process_that_exchanges_messages_is_killed => on(2, |nodes| {
        scenario::the_peer_of_a_killed_process_stops_waiting(nodes, [0, 1])
    }),
    random_messages_beside_a_slow_receiver => on(4, |nodes| {
        scenario::random_messages_beside_a_slow_receiver(nodes, 3, 3, 100)
    }),
    collectives_of_all_nodes => on(5, |nodes| {
        let each = Together { programs: 1, rounds: 2, barriers: 10_000, bytes: 1 << 20 };
        scenario::collectives(nodes, each)
    }),
    collectives_at_5_percent_loss => net::on_bad_links(5, 5, |nodes| {
        let each = Together { programs: 1, rounds: 5, barriers: 100, bytes: 100_000 };
        scenario::collectives(nodes, each)
    }),
    members_wait_for_one_that_stands_still: 0 => {
        let torus = HostNodes::start_with(4, "[network]\ntopology = \"torus\"\ncolumns = 2\n")?;
        // Its program stands still; node 3 is behind it.
        scenario::members_wait_for_one_that_stands_still(&torus, 1, &|program, still| {
            program.signal(if still { SIGSTOP } else { SIGCONT })
        })
    },
    members_of_a_killed_process_learn_of_it => [0, 2].into_iter().try_for_each(|victim| {
        on(3, |nodes| scenario::members_of_a_killed_process_learn_of_it(nodes, victim))
    }),
    an_end_of_a_channel_is_killed => [false, true].into_iter().try_for_each(|receiver_dies| {
        on(2, |nodes| scenario::the_end_of_a_channel_is_killed(nodes, receiver_dies))
    }),
    a_death_in_the_queue_is_survived: 0 => Death::ALL.into_iter().try_for_each(|death| {
        let placement = Placement { owner: 0, recoverer: 1, first: 2, victim: 3, last: 4 };
        on(5, |nodes| scenario::a_death_in_the_queue_is_survived(nodes, placement, death))
            .with_context(|| format!("{death:?}"))
    }),
    servers_of_a_volume_are_killed_in_turn: 0 => on(4, |nodes| {
        scenario::servers_of_a_volume_are_killed_in_turn(nodes)
    }),
    servers_of_a_volume_are_killed_at_5_percent_loss: 0 => net::on_bad_links(4, 5, |nodes| {
        scenario::servers_of_a_volume_are_killed_in_turn(nodes)
    }),
    // Its node takes no part in the exchange: a host-mode node is one process.
    a_queue_fuzzer_harms_nobody => on(3, |nodes| {
        scenario::queue_fuzzer_harms_nobody(nodes, 2, 2)
    }),
};

/// The cases that boot virtual machines; those that take longest first, so that others run
/// beside them.
pub(crate) const VM: [&[Case]; 22] = [
    vm::DISK_IMAGES,
    vm::INSTALLED,
    vm::MPI_SUITES,
    vm::REMOTE_MEMORY,
    vm::VOLUMES,
    vm::MPI,
    vm::VERBS,
    vm::SYNC,
    vm::CASES,
    vm::DATAGRAMS,
    vm::ETHERNET,
    vm::EVENTS,
    vm::VFIO,
    vm::POOLS,
    vm::ORDERING,
    vm::WIRE,
    vm::MACHINE,
    vm::MEMORY,
    vm::HOSTILE,
    vm::INSIDE,
    vm::PACKAGES,
    vm::TRIALS,
];

/// The cases that only `--all` runs. None is the only one that shows a row of the requirements; that a disk image
/// joins by cloud-init, that the steps of pipelines run, and that packages install where there is no clone, is shown by
/// their cases alone.
pub(crate) const LONG: &[&str] = &[
    "slurm::guests_of_three_hosts_are_one_cluster",
    "vm::a_disk_image_joins_by_cloud_init_and_has_its_module_by_dkms",
    "vm::a_mounted_volume_outlives_silences_and_full_servers",
    "vm::a_node_with_a_mac_of_its_own_has_no_second_port",
    "vm::a_package_of_guests_builds_its_module_and_is_removed",
    "vm::a_program_of_packages_runs_in_guests",
    "vm::an_installed_package_runs_a_cluster_without_toolchains",
    "vm::files_beyond_ram_under_pressure",
    "vm::hpcc_and_scalapack_pass_over_the_nics",
    "vm::memory_beyond_ram_under_pressure",
    "vm::memory_remapped_a_million_times",
    "vm::programs_of_libibverbs_register_more_than_there_is",
    "vm::soft_roce_works_beside_the_nics",
    "vm::steps_of_ci_run_in_a_clean_clone_of_a_new_project",
    "vm::swap_and_files_outlive_their_servers",
    "vm::the_example_of_ci_for_libibverbs_passes",
];

/// Cases that run one after the other on the same guests, in a run of several: to boot them takes longer than most of
/// these cases. Each leaves its guests as it has found them, but for the last of a row.
pub(crate) const SHARED: &[&[&str]] = &[
    &[
        "vm::modules_of_both_kernels_exchange_pages",
        "vm::the_device_is_visible_and_pins_nothing",
        "vm::processes_cannot_touch_each_other",
        "vm::notifications_of_every_kind",
        "vm::a_killed_process_leaves_nothing",
        "vm::the_module_unloads_and_reloads",
        "vm::a_paused_guest_is_served_and_goes_on",
    ],
    &[
        "vm::demo",
        "vm::a_queue_fuzzer_harms_nobody",
        "vm::a_guest_reboots_and_rejoins",
    ],
];

/// Runs a case on so many nodes of a fresh host-mode cluster.
fn on(count: usize, case: impl FnOnce(&HostNodes) -> Result<()>) -> Result<()> {
    case(&HostNodes::start(count)?)
}

/// The same, with two engines and lossless links.
fn two_engines(count: usize, case: impl FnOnce(&HostNodes) -> Result<()>) -> Result<()> {
    case(&HostNodes::start_with(count, TWO_ENGINES)?)
}
