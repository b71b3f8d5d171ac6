// Package neighborlimits warns before the kernel's neighbour tables are too small for the nodes and pods of this node, and names a table that has overflowed.
//
// Tables in: nodes, routes, devices, endpoints. Table out: neighbor-limits. It owns nothing in the kernel and changes nothing there. After a restart it reads again; when
// a table overflowed last is known again once it does.
package neighborlimits
