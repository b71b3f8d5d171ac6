// Package pathtest tests the tunnel to each other node and names what is wrong with it. With --routing-mode=hybrid it also tests whether pods reach the node
// past the tunnel, and chooses the mode of each node. With --routing-mode=native it tests whether the network passes packets of pods.
//
// Tables in: nodes, overlays, mtus, devices, node-health, flows. Tables out: path-tests, four rows for each
// other node, and with --routing-mode=hybrid a fifth, and node-paths, one row for each other node. In that mode it also reads routes and neighbors. Without a
// tunnel path-tests has two rows for each other node.
// A test sends ICMP echo requests to an address of the peer inside the tunnel, small ones and some as large as pods send, and asks the server of node-health there for
// short and long answers. When nothing comes back it asks the node itself, outside the tunnel. Without a tunnel the requests go between addresses of
// pod ranges, and there are none by TCP.
//
// A path has failed after three tests in a row. A test that this node cannot make says nothing about another node. Nothing is kept over a
// restart: all is unknown then, until it is tested. The cell owns no state in the kernel.
package pathtest
