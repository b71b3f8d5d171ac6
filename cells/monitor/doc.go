// Package monitor reads the events of the datapath: it keeps the latest drops and flows in tables and streams everything to
// the listeners of the monitor socket.
//
// Tables: writes drops, the latest 256, and flows, the 2048 that were seen last. Kernel state: none; it is the one reader of the ring buffer events, and reads it
// also when nobody listens, so that drops is always current.
//
// After a restart the tables are empty and events that came in between are read from the ring buffer, as far as it held
// them. Nothing waits for a listener: each has a queue, and what does not fit is counted and told to it as lost.
package monitor
