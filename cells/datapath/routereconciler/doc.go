// Package routereconciler maintains the desired routes of the agent's features in the kernel.
//
// Tables in: desired-routes (its own; the cells basedevices and noderoutes contribute rows), routes, devices and
// device-addresses, which show the observed state. Tables out: desired-routes with its status.
//
// It owns every route whose protocol is 87, and no other: a route of another owner to the same destination is an error
// on the row, never overwritten. After a restart the routes of the previous run stay; leftover routes are removed
// once every feature has contributed its routes. A route that another program deletes is added again as soon as its absence is
// observed; a route whose device is missing waits for the device.
package routereconciler
