// Package pathtest tests the tunnel to each other node and names its faults. With --routing-mode=hybrid it also tests whether pods reach the node directly,
// without the tunnel, and chooses the mode of each node. With --routing-mode=native it tests whether the network forwards packets of pods.
//
// Tables in: nodes, overlays, mtus, devices, node-health, flows; with --routing-mode=hybrid also routes and neighbors. Tables out: path-tests, with four rows
// for each other node, five with --routing-mode=hybrid and two without a tunnel; node-paths, with one row for each other node, only with --routing-mode=hybrid.
// A test sends ICMP echo requests to an address of the peer inside the tunnel, small ones and some as large as packets of pods, and requests short and long
// replies from the server of node-health there. If no reply arrives, it sends a request to the node itself, outside the tunnel. Without a tunnel the requests
// go between addresses of pod ranges, and there are none by TCP.
//
// A path has failed after three failed tests in a row. A test that this node cannot send says nothing about another node. No state survives a restart: every
// path is unknown until it is tested. The cell owns no state in the kernel.
package pathtest
