/* A driver library whose GPUs stand in a file: per line "gpu pid bytes", a process on a GPU.
   Built with -DTABLE='"path"'. A GPU is 87 % busy, its memory 12 %, at 300 W and 1980 MHz. */
#include <stdio.h>

typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;
typedef struct { unsigned gpu, memory; } Rates;

int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(unsigned long)(index + 1); return 0; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { *milliwatts = 300000; return 0; }
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz) { *mhz = 1980; return 0; }
int nvmlDeviceGetUtilizationRates(void *device, Rates *rates) { rates->gpu = 87; rates->memory = 12; return 0; }

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *found) {
    unsigned gpu, pid, room = *count, seen = 0;
    unsigned long long used;
    FILE *table = fopen(TABLE, "r");
    while (table && fscanf(table, "%u %u %llu", &gpu, &pid, &used) == 3) {
        if (gpu + 1 != (unsigned long)device) continue;
        if (seen < room && found) found[seen] = (Process){pid, used, -1, -1};
        seen++;
    }
    if (table) fclose(table);
    *count = seen;
    return seen > room ? 7 : 0; /* 7: insufficient size */
}
