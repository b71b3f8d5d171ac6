// Package desiredroutes keeps the routes that features of the agent want in the kernel.
//
// Tables in: desired-routes (its own; features contribute through [desiredroutes.Writer]), routes, devices and
// device-addresses, by which it sees what became of them. Tables out: desired-routes with its status.
//
// It owns every route whose protocol is 87, and no other: a route of somebody else to the same destination is an error
// on the row, never overwritten. After a restart the routes of the earlier run stay; those that nobody wants are removed
// once every feature has said what it wants. A route that somebody deletes comes back as soon as its absence is
// observed; one whose device is missing waits for the device.
package desiredroutes
