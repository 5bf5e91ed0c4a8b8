//! What must hold on every kind of nodes. Each function returns an error if a program fails,
//! or if what its documentation promises does not hold.

mod apart;
mod attack;
mod collectives;
mod contention;
mod death;
mod exchange;
mod messages;
mod networks;
mod orphans;
mod remote_memory;
mod signals;
mod top;

pub(crate) use apart::{
    demo_across, partition_heals_in_time_and_fails_beyond, until_carrier, until_connected,
};
pub(crate) use attack::{
    isolation_probe_is_refused, keys_are_checked_at_both_ends, queue_fuzzer_harms_nobody,
};
pub(crate) use collectives::{
    collectives, members_of_a_killed_process_learn_of_it, members_wait_for_one_that_stands_still,
    Together,
};
pub(crate) use contention::{contention, contention_while_the_owner_is_stopped, Contenders};
pub(crate) use death::{
    a_killed_process_leaves_nothing, a_process_forks_between_its_transfers,
    peers_of_a_killed_process_learn_of_it, requests_are_told_once, Load,
};
pub(crate) use exchange::{all_pairs_exchange, demo_between};
pub(crate) use messages::{
    random_messages, random_messages_beside_a_slow_receiver,
    the_peer_of_a_killed_process_stops_waiting, what_waits_for_a_silent_node_ends,
};
pub(crate) use networks::one_network_is_partitioned_and_the_other_goes_on;
pub(crate) use orphans::{a_death_in_the_queue_is_survived, Death, Placement};
pub(crate) use remote_memory::servers_of_a_volume_are_killed_in_turn;
pub(crate) use signals::{notifications_of_every_kind, the_end_of_a_channel_is_killed};
pub(crate) use top::top_shows_what_nodes_do;

/// Number of the signal that stops a program.
pub(crate) const SIGSTOP: u8 = 19;

/// Number of the signal that lets a program go on.
pub(crate) const SIGCONT: u8 = 18;
