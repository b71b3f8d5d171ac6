// Package monitor reads the events of the datapath: it keeps the latest drops and flows in tables and streams everything to
// the listeners of the monitor socket.
//
// Tables in: those of [policyexplain.Tables], which explain denied packets. Tables out: drops (the latest 256), flows (the 2048 that were seen last). Kernel
// state: none. The cell is the only reader of the ring buffer events. It also reads without listeners, so that drops is always current.
//
// After a restart the tables are empty; events of the time between the runs are read from the ring buffer as far as it held them. A slow listener delays
// neither the cell nor other listeners: each listener has a queue, and the number of events that did not fit is sent to the listener as lost.
package monitor
