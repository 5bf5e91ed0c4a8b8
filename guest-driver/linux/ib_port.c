// SPDX-License-Identifier: GPL-2.0
/*
 * The ports of the device of libibverbs. Both are the same NIC: the first is named as those of InfiniBand, by a
 * number, the second as those of RoCE, by the IP addresses of the node's Ethernet port. Connections by rdma_cm
 * need the second.
 */
#include <linux/etherdevice.h>
#include <linux/if_arp.h>
#include <linux/inetdevice.h>
#include <linux/ipv6.h>
#include <linux/netdevice.h>
#include <linux/rcupdate.h>
#include <net/addrconf.h>
#include <net/arp.h>
#include <net/ndisc.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_mad.h>

#include "qnic_ib.h"

/* Addresses of the second port. */
#define GIDS	128

/* MAC address of the Ethernet port of node 0; the node is in the last two bytes. */
static const u8 first_mac[ETH_ALEN] = { 0x52, 0x54, 0x00, 0x71, 0x00, 0x00 };

int qnic_ib_node_of(const u8 *mac)
{
	if (memcmp(mac, first_mac, ETH_ALEN - 2))
		return -EHOSTUNREACH;
	return mac[4] << 8 | mac[5];
}

u32 qnic_ib_lid_of(const struct rdma_ah_attr *attr)
{
	int node;

	if (attr->type != RDMA_AH_ATTR_TYPE_ROCE)
		return rdma_ah_get_dlid(attr);
	node = qnic_ib_node_of(attr->roce.dmac);
	return node < 0 ? 0 : node + 1;
}

/*
 * The node's Ethernet port, looked up each time: it may come later, and go. A bridge or a VLAN on it has the same
 * address, but no hardware.
 */
struct net_device *qnic_ib_get_netdev(struct ib_device *ib, u32 port)
{
	struct net_device *candidate, *found = NULL;
	u16 node = qnic_rs_verbs_node(to_device(ib)->driver);

	if (port != QNIC_IB_ROCE_PORT)
		return NULL;
	rcu_read_lock();
	for_each_netdev_rcu(&init_net, candidate) {
		if (candidate->type == ARPHRD_ETHER && candidate->dev.parent &&
		    qnic_ib_node_of(candidate->dev_addr) == node) {
			dev_hold(candidate);
			found = candidate;
			break;
		}
	}
	rcu_read_unlock();
	return found;
}

static bool is_up(struct ib_device *ib, u32 port)
{
	struct net_device *netdev;
	bool up;

	if (READ_ONCE(to_device(ib)->nic->port_down))
		return false;
	if (port != QNIC_IB_ROCE_PORT)
		return true;
	netdev = qnic_ib_get_netdev(ib, port);
	up = netdev && netif_running(netdev);
	dev_put(netdev);
	return up;
}

void qnic_ib_tell_roce_port(struct qnic_ib_device *device)
{
	struct qnic_ib_nic *nic = device->nic;
	struct ib_event event = {
		.device = &device->ib,
		.element.port_num = QNIC_IB_ROCE_PORT,
	};
	bool up;

	/* verbs.c has a lock of its own, the notifier that of all Ethernet ports. */
	spin_lock(&nic->roce_lock);
	up = is_up(&device->ib, QNIC_IB_ROCE_PORT);
	event.event = up ? IB_EVENT_PORT_ACTIVE : IB_EVENT_PORT_ERR;
	if (up != nic->roce_up)
		ib_dispatch_event(&event);
	nic->roce_up = up;
	spin_unlock(&nic->roce_lock);
}

/* ---- the node of an address ---- */

/* Behind a router it has the router's MAC. In an RCU read section. */
static bool is_on_network_v4(struct net_device *netdev, __be32 address)
{
	struct in_device *in = __in_dev_get_rcu(netdev);
	const struct in_ifaddr *own;

	if (!in)
		return false;
	in_dev_for_each_ifa_rcu(own, in) {
		if (inet_ifa_match(address, own))
			return true;
	}
	return false;
}

/*
 * Whether ARP or its like knows an address to be at a node. Otherwise it is asked, and the next message
 * may find what it has said.
 */
static bool is_at(struct neigh_table *table, const void *address, struct net_device *netdev,
		  u16 node)
{
	struct neighbour *known = __neigh_lookup(table, address, netdev, 1);
	u8 mac[ETH_ALEN];
	bool at;

	if (!known)
		return false;
	neigh_ha_snapshot(mac, known, netdev);
	at = READ_ONCE(known->nud_state) & NUD_VALID && qnic_ib_node_of(mac) == node;
	if (!at)
		neigh_event_send(known, NULL);
	neigh_release(known);
	return at;
}

/* In an RCU read section. */
static bool is_neighbour(struct net_device *netdev, const union ib_gid *gid, u16 node)
{
	const struct in6_addr *address = (const struct in6_addr *)gid->raw;

	if (ipv6_addr_v4mapped(address))
		return is_on_network_v4(netdev, address->s6_addr32[3]) &&
		       is_at(&arp_tbl, &address->s6_addr32[3], netdev, node);
#if IS_ENABLED(CONFIG_IPV6)
	if (!ipv6_mod_enabled() || ipv6_addr_is_multicast(address))
		return false;
	if (ipv6_addr_type(address) & IPV6_ADDR_LINKLOCAL || ipv6_chk_prefix(address, netdev))
		return is_at(&nd_tbl, address, netdev, node);
#endif
	return false;
}

static const struct ib_gid_attr *own_address(struct ib_device *ib, const union ib_gid *gid)
{
	return rdma_find_gid_by_port(ib, gid, IB_GID_TYPE_ROCE_UDP_ENCAP, QNIC_IB_ROCE_PORT, NULL);
}

static bool is_own(struct ib_device *ib, const union ib_gid *gid)
{
	const struct ib_gid_attr *own = own_address(ib, gid);

	if (IS_ERR(own))
		return false;
	rdma_put_gid_attr(own);
	return true;
}

bool qnic_ib_is_from(struct ib_device *ib, u16 node, const union ib_gid *from,
		     const union ib_gid *to)
{
	const struct ib_gid_attr *own = own_address(ib, to);
	struct net_device *netdev;
	bool is_from;

	if (IS_ERR(own))
		return false;
	rcu_read_lock();
	netdev = rdma_read_gid_attr_ndev_rcu(own);
	if (node == qnic_rs_verbs_node(to_device(ib)->driver))
		is_from = is_own(ib, from);
	else
		is_from = !IS_ERR(netdev) && is_neighbour(netdev, from, node);
	rcu_read_unlock();
	rdma_put_gid_attr(own);
	return is_from;
}

/* ---- what a port is ---- */

static u32 gids_of(u32 port)
{
	return port == QNIC_IB_ROCE_PORT ? GIDS : 1;
}

int qnic_ib_query_port(struct ib_device *ib, u32 port, struct ib_port_attr *attr)
{
	bool up = is_up(ib, port);

	attr->state = up ? IB_PORT_ACTIVE : IB_PORT_DOWN;
	attr->phys_state = up ? IB_PORT_PHYS_STATE_LINK_UP : IB_PORT_PHYS_STATE_POLLING;
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = IB_MTU_4096;
	attr->gid_tbl_len = gids_of(port);
	attr->pkey_tbl_len = 1;
	attr->max_msg_sz = QNIC_VERBS_MESSAGE;
	if (port == QNIC_IB_ROCE_PORT)
		attr->ip_gids = true;
	else
		attr->lid = qnic_rs_verbs_node(to_device(ib)->driver) + 1;
	attr->max_vl_num = 1;
	attr->active_width = IB_WIDTH_4X;
	attr->active_speed = IB_SPEED_QDR;
	return 0;
}

int qnic_ib_get_port_immutable(struct ib_device *ib, u32 port,
			       struct ib_port_immutable *immutable)
{
	immutable->gid_tbl_len = gids_of(port);
	immutable->pkey_tbl_len = 1;
	immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	if (port == QNIC_IB_ROCE_PORT)
		immutable->core_cap_flags = RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
	else
		/* rdma_listen() asks the first port for a connection manager, whichever port it listens on. */
		immutable->core_cap_flags = RDMA_CORE_CAP_PROT_IB | RDMA_CORE_CAP_IB_MAD |
					    RDMA_CORE_CAP_IB_CM;
	return 0;
}

/* The connection manager says here that it is there, which nothing depends on. */
int qnic_ib_modify_port(struct ib_device *ib, u32 port, int mask, struct ib_port_modify *modify)
{
	u32 bits = modify->set_port_cap_mask | modify->clr_port_cap_mask;

	return mask || bits & ~IB_PORT_CM_SUP ? -EOPNOTSUPP : 0;
}

enum rdma_link_layer qnic_ib_get_link_layer(struct ib_device *ib, u32 port)
{
	return port == QNIC_IB_ROCE_PORT ? IB_LINK_LAYER_ETHERNET : IB_LINK_LAYER_INFINIBAND;
}

int qnic_ib_query_pkey(struct ib_device *ib, u32 port, u16 index, u16 *pkey)
{
	*pkey = 0xffff;
	return 0;
}

/* Of the first port; the core keeps those of the second. */
int qnic_ib_query_gid(struct ib_device *ib, u32 port, int index, union ib_gid *gid)
{
	gid->global.subnet_prefix = cpu_to_be64(0xfe80000000000000ull);
	gid->global.interface_id = ib->node_guid;
	return 0;
}

/* The NIC knows nodes and no addresses: it is not told. */
int qnic_ib_gid_changed(const struct ib_gid_attr *attr, void **context)
{
	return 0;
}
