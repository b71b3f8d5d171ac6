// Package neighborlimitcheck warns when the neighbour tables of the kernel are too small for the nodes and pods of this node, and reports tables that overflowed.
//
// Tables in: nodes, routes, devices, endpoints. Table out: neighbor-limits. The cell owns and changes nothing in the kernel. After a restart LastOverflow is
// empty until the next overflow.
package neighborlimitcheck
